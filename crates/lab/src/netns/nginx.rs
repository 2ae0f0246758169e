//! nginx for one flow: a single process confined to a folder.

use super::program::{self, Program};
use super::space::Space;
use super::stop::Stop;
use anyhow::{Context, Result, bail};
use std::path::Path;

/// A running nginx. It ends when this is dropped.
#[derive(Debug)]
pub struct Nginx(Program);

impl Nginx {
    /// Starts nginx in `space` with its files in `root`, and waits until it listens on `port`.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        space: &Space,
        name: &str,
        (root, configuration): (&Path, &str),
        port: u16,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        let file = folder.join(format!("{name}.conf"));
        std::fs::write(&file, configuration).with_context(|| file.display().to_string())?;
        let mut command = program::prompt(program::path_of("nginx"));
        command.args(["-e", "stderr", "-p"]).arg(root).arg("-c").arg(&file);
        Program::start_listening(space, name, &mut command, (port, true), folder, stop).map(Self)
    }

    /// Checks that it is running.
    ///
    /// # Errors
    /// It has ended; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        match self.0.ended()? {
            Some(status) => bail!("nginx ended ({status}): {}", self.0.log_tail()),
            None => Ok(()),
        }
    }
}

/// A configuration that contains `block`. It uses a single process under the present user, because a user namespace has no
/// other users.
pub fn configuration(root: &Path, module: Option<&str>, block: &str) -> String {
    let module = module.map_or_else(String::new, |path| format!("load_module {path};\n"));
    format!(
        "{module}daemon off;\nmaster_process off;\nuser root;\npid {}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 64; }}\n{block}",
        root.display()
    )
}
