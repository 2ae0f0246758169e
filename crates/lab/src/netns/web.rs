//! A file served by nginx, and the copy downloaded by curl.

use super::nginx::{self, Nginx};
use super::program;
use super::space::Space;
use super::stop::Stop;
use crate::sim::stream::SeededStream;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Required programs.
pub const PROGRAMS: &[(&str, &str)] =
    &[("nginx", "nginx-light"), ("curl", "curl"), ("sha256sum", "coreutils")];

/// Size of the pieces in which a file is generated.
const CHUNK_BYTES: usize = 1 << 20;

/// An nginx with one file.
#[derive(Debug)]
pub struct Web {
    nginx: Nginx,
    file: PathBuf,
    copy: PathBuf,
    url: String,
}

impl Web {
    /// Generates a file of `bytes` from `seed` and starts nginx in `space` to serve it.
    ///
    /// # Errors
    /// nginx does not start; there is no room for the file.
    pub fn start(
        space: &Space,
        name: &str,
        at: SocketAddr,
        bytes: u64,
        seed: u64,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        program::require(PROGRAMS)?;
        let root = folder.join(format!("{name}.www"));
        std::fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        let file = root.join("file");
        make_file(&file, bytes, seed).with_context(|| file.display().to_string())?;
        let nginx = Nginx::start(space, name, (&root, &nginx_conf(&root, at)), at.port(), folder, stop)?;
        let copy = folder.join(format!("{name}.copy"));
        Ok(Self { nginx, file, copy, url: format!("http://{at}/file") })
    }

    /// The command that downloads it within this many seconds.
    #[must_use]
    pub fn curl(&self, local: std::net::IpAddr, seconds: f64) -> Vec<String> {
        let path = |p: &Path| p.display().to_string();
        let curl = program::path_of("curl");
        [
            path(&curl),
            "--disable".into(),
            "--fail".into(),
            "--silent".into(),
            "--show-error".into(),
            "--noproxy".into(),
            "*".into(),
            "--interface".into(),
            format!("host!{local}"),
            "--max-time".into(),
            format!("{seconds:.3}"),
            "--output".into(),
            path(&self.copy),
            self.url.clone(),
        ]
        .into()
    }

    /// Path of the copy made by curl.
    #[must_use]
    pub fn copy(&self) -> &Path {
        &self.copy
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The checksums of file and copy, by sha256sum.
    ///
    /// # Errors
    /// sha256sum fails, in particular if there is no copy.
    pub fn sums(&self) -> Result<[String; 2]> {
        Ok([sha256(&self.file)?, sha256(&self.copy)?])
    }

    /// Checks that nginx is running.
    ///
    /// # Errors
    /// It has ended; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        self.nginx.check()
    }
}

fn make_file(path: &Path, bytes: u64, seed: u64) -> std::io::Result<()> {
    let stream = SeededStream::new(seed);
    let mut file = BufWriter::new(File::create(path)?);
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    let mut at = 0;
    while at < bytes {
        let n = usize::try_from(bytes - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        chunk.clear();
        stream.append(at, n, &mut chunk);
        file.write_all(&chunk)?;
        at += n as u64;
    }
    file.flush()
}

fn sha256(path: &Path) -> Result<String> {
    let output = program::command("sha256sum").arg("--").arg(path).output().context("sha256sum")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.split_whitespace().next() {
        Some(sum) if output.status.success() => Ok(sum.to_owned()),
        _ => bail!("sha256sum: {}", String::from_utf8_lossy(&output.stderr).trim()),
    }
}

fn nginx_conf(folder: &Path, at: SocketAddr) -> String {
    let root = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|what| format!("    {what}_temp_path {root}/tmp-{what};\n"))
        .collect();
    let block = format!(
        "http {{\n    access_log off;\n    sendfile on;\n    default_type application/octet-stream;\n{temporary}\
         \x20   server {{ listen {at}; root {root}; }}\n}}\n"
    );
    nginx::configuration(folder, None, &block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_size_and_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        make_file(&path, CHUNK_BYTES as u64 + 7, 3).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), CHUNK_BYTES + 7);
        assert!(SeededStream::new(3).matches(0, &bytes));
    }

    #[test]
    fn nginx_keeps_to_its_folder() {
        let text = nginx_conf(Path::new("/x/www"), "10.0.0.1:80".parse().unwrap());
        assert!(text.contains("listen 10.0.0.1:80;"));
        assert_eq!(text.matches("_temp_path /x/www/").count(), 5);
    }
}
