//! Initial windows by a kernel program (sockops), where the configuration wants that instead of routes.

use crate::runtime::config::UeSection;
#[cfg(feature = "bpf")]
use crate::runtime::config::WindowBy;
#[cfg(feature = "bpf")]
use anabranch_kern::bpf::InitialWindows;
use std::collections::BTreeMap;

/// The program, and the windows it has; it is gone with this value.
pub struct Windows {
    #[cfg(feature = "bpf")]
    program: InitialWindows,
    have: BTreeMap<u32, u32>,
}

impl Windows {
    /// Attaches it, if the configuration says so.
    ///
    /// # Errors
    /// The kernel refuses it, or this build has no kernel programs.
    #[cfg(feature = "bpf")]
    pub fn start(ue: &UeSection) -> anyhow::Result<Option<Self>> {
        use anyhow::Context;
        if ue.initial_window == WindowBy::Route {
            return Ok(None);
        }
        let program = InitialWindows::attach(&ue.initial_window_cgroup)
            .context("[ue] initial_window = \"sockops\" (\"route\" needs no kernel program)")?;
        Ok(Some(Self { program, have: BTreeMap::new() }))
    }

    /// Attaches nothing: this build has no kernel programs.
    ///
    /// # Errors
    /// The configuration wants one.
    #[cfg(not(feature = "bpf"))]
    pub fn start(ue: &UeSection) -> anyhow::Result<Option<Self>> {
        anyhow::ensure!(
            ue.initial_window == crate::runtime::config::WindowBy::Route,
            "[ue] initial_window = \"sockops\": this build has no kernel programs; build with `--features bpf` (./x does), \
             or write \"route\""
        );
        Ok(None)
    }

    /// Makes it so that marks have these windows, and no others; what could not be done.
    pub fn bring(&mut self, wanted: BTreeMap<u32, u32>) -> Vec<String> {
        let gone = self.have.keys().filter(|mark| !wanted.contains_key(mark)).map(|mark| (*mark, None));
        let changed = wanted.iter().filter(|(mark, window)| self.have.get(mark) != Some(window));
        let changes: Vec<(u32, Option<u32>)> =
            gone.chain(changed.map(|(mark, window)| (*mark, Some(*window)))).collect();
        let mut problems = Vec::new();
        for (mark, window) in changes {
            match self.set(mark, window) {
                Ok(()) => match window {
                    Some(window) => drop(self.have.insert(mark, window)),
                    None => drop(self.have.remove(&mark)),
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
