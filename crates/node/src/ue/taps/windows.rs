//! Initial windows set by a kernel program (sockops), an alternative to routes.

use crate::runtime::config::UeSection;
#[cfg(feature = "bpf")]
use crate::runtime::config::WindowBy;
#[cfg(feature = "bpf")]
use anabranch_kern::bpf::InitialWindows;
use std::collections::BTreeMap;

/// The attached program and its windows; dropping it detaches the program.
pub struct Windows {
    #[cfg(feature = "bpf")]
    program: InitialWindows,
    installed: BTreeMap<u32, u32>,
}

impl Windows {
    /// Attaches the program, if it is configured.
    ///
    /// # Errors
    /// The kernel refuses the program, or this build has no kernel programs.
    #[cfg(feature = "bpf")]
    pub fn start(ue: &UeSection) -> anyhow::Result<Option<Self>> {
        use anyhow::Context;
        if ue.initial_window == WindowBy::Route {
            return Ok(None);
        }
        let program = InitialWindows::attach(&ue.initial_window_cgroup)
            .context("[ue] initial_window = \"sockops\" (\"route\" needs no kernel program)")?;
        Ok(Some(Self { program, installed: BTreeMap::new() }))
    }

    /// Replacement for builds without kernel programs; attaches nothing.
    ///
    /// # Errors
    /// The program is configured.
    #[cfg(not(feature = "bpf"))]
    pub fn start(ue: &UeSection) -> anyhow::Result<Option<Self>> {
        anyhow::ensure!(
            ue.initial_window == crate::runtime::config::WindowBy::Route,
            "[ue] initial_window = \"sockops\": this build has no kernel programs; build with `--features bpf` (./x does), \
             or set \"route\""
        );
        Ok(None)
    }

    /// Sets the windows of these marks and removes all others; returns messages about failures.
    pub fn update(&mut self, wanted: BTreeMap<u32, u32>) -> Vec<String> {
        let gone = self.installed.keys().filter(|mark| !wanted.contains_key(mark)).map(|mark| (*mark, None));
        let changed = wanted.iter().filter(|(mark, window)| self.installed.get(mark) != Some(window));
        let changes: Vec<(u32, Option<u32>)> =
            gone.chain(changed.map(|(mark, window)| (*mark, Some(*window)))).collect();
        let mut problems = Vec::new();
        for (mark, window) in changes {
            match self.set(mark, window) {
                Ok(()) => match window {
                    Some(window) => drop(self.installed.insert(mark, window)),
                    None => drop(self.installed.remove(&mark)),
                },
                Err(error) => problems.push(error.to_string()),
            }
        }
        problems
    }

    #[cfg(feature = "bpf")]
    fn set(&self, mark: u32, window: Option<u32>) -> anyhow::Result<()> {
        Ok(self.program.set(mark, window)?)
    }

    #[cfg(not(feature = "bpf"))]
    fn set(&self, _: u32, _: Option<u32>) -> anyhow::Result<()> {
        Ok(())
    }
}
