//! Report
use crate::runner::Finished;
use crate::scenario::Scenario;
use std::path::{Path, PathBuf};

/// Files of one report.
#[derive(Debug, Clone)]
pub struct Written {
    /// The page.
    pub html: PathBuf,
}

/// Writes.
pub fn write(folder: &Path, _: &Scenario, _: &Finished) -> anyhow::Result<Written> {
    Ok(Written { html: folder.to_owned() })
}

/// Index.
pub fn index(_: &Path, _: &[Written]) -> anyhow::Result<()> {
    Ok(())
}
