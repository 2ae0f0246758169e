//! A video that ffmpeg sends by RTMP, and nginx, which records it.

use super::nginx::{self, Nginx};
use super::program;
use super::space::Space;
use super::stop::Stop;
use crate::backend::Unable;
use anyhow::{Context, Result, bail, ensure};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Required programs.
const PROGRAMS: &[(&str, &str)] = &[("nginx", "nginx-light"), ("ffmpeg", "ffmpeg"), ("ffprobe", "ffmpeg")];
/// nginx's RTMP module, where Debian has it.
const MODULE: &str = "/usr/lib/nginx/modules/ngx_rtmp_module.so";
/// Length of the video, which is sent in a loop.
const LOOP_SECONDS: u32 = 10;
const FRAMES_PER_SECOND: u32 = 30;

/// An nginx that records.
#[derive(Debug)]
pub struct Video {
    nginx: Nginx,
    file: PathBuf,
    recording: PathBuf,
    url: String,
    seconds: Duration,
}

impl Video {
    /// Creates a video of `bps` at a constant rate, and starts nginx in `space` to record `seconds` of it.
    ///
    /// # Errors
    /// [`Unable`]: a program is missing. ffmpeg fails; nginx does not start.
    pub fn start(
        space: &Space,
        name: &str,
        at: SocketAddr,
        bps: u64,
        seconds: Duration,
        folder: &Path,
        stop: &Stop,
    ) -> Result<Self> {
        program::require(PROGRAMS)?;
        if !Path::new(MODULE).is_file() {
            bail!(Unable("missing: nginx's RTMP module; install: apt install libnginx-mod-rtmp".to_owned()));
        }
        let root = folder.join(format!("{name}.rtmp"));
        std::fs::create_dir_all(&root).with_context(|| root.display().to_string())?;
        let file = root.join("video.flv");
        make(&file, bps)?;
        let (name, conf) = (format!("{name}-nginx"), nginx_conf(&root, at));
        let nginx = Nginx::start(space, &name, (&root, &conf), at.port(), folder, stop)?;
        let recording = root.join("recorded.flv");
        Ok(Self { nginx, file, recording, url: format!("rtmp://{at}/live/recorded"), seconds })
    }

    /// The command that sends it at its frame rate.
    #[must_use]
    pub fn command(&self) -> Vec<String> {
        let mut command = vec![program::path_of("ffmpeg").display().to_string()];
        command
            .extend(["-nostdin", "-loglevel", "error", "-re", "-stream_loop", "-1", "-i"].map(str::to_owned));
        command.push(self.file.display().to_string());
        command.extend(["-c", "copy", "-t"].map(str::to_owned));
        command.push(format!("{:.3}", self.seconds.as_secs_f64()));
        command.extend(["-f", "flv"].map(str::to_owned));
        command.push(self.url.clone());
        command
    }

    /// Number of frames in the recording, counted by ffprobe.
    ///
    /// # Errors
    /// There is no valid recording.
    pub fn frames(&self) -> Result<u64> {
        let mut probe = program::command("ffprobe");
        probe.args(["-v", "error", "-count_packets", "-select_streams", "v"]);
        probe.args(["-show_entries", "stream=nb_read_packets", "-of", "csv=p=0"]).arg(&self.recording);
        let output = probe.output().context("ffprobe")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        let count = text.trim().trim_end_matches(',').parse();
        count.with_context(|| format!("ffprobe of the recording: {}", complaint.trim()))
    }

    /// Checks that nginx is running.
    ///
    /// # Errors
    /// It has ended; with the end of its log.
    pub fn check(&mut self) -> Result<()> {
        self.nginx.check()
    }
}

/// A test picture, padded to `bps` in every quarter of a second.
fn make(file: &Path, bps: u64) -> Result<()> {
    let (bps_text, buffer) = (bps.to_string(), (bps / 4).to_string());
    let source = format!("testsrc2=size=640x360:rate={FRAMES_PER_SECOND}");
    let (seconds, group) = (LOOP_SECONDS.to_string(), FRAMES_PER_SECOND.to_string());
    let mut ffmpeg = program::command("ffmpeg");
    ffmpeg.args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", &source, "-t", &seconds]);
    ffmpeg.args(["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p"]);
    ffmpeg.args(["-x264-params", "nal-hrd=cbr", "-g", &group, "-b:v", &bps_text, "-minrate", &bps_text]);
    ffmpeg.args(["-maxrate", &bps_text, "-bufsize", &buffer, "-f", "flv"]).arg(file);
    let output = ffmpeg.output().context("ffmpeg")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ffmpeg makes no video ({}): {}", output.status, complaint.trim());
    Ok(())
}

fn nginx_conf(folder: &Path, at: SocketAddr) -> String {
    let root = folder.display();
    let block = format!(
        "rtmp {{\n    access_log off;\n    server {{\n        listen {at};\n        application live {{\n\
         \x20           live on;\n            record all;\n            record_path {root};\n\
         \x20           record_suffix .flv;\n        }}\n    }}\n}}\n"
    );
    nginx::configuration(folder, Some(MODULE), &block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_records_in_its_folder() {
        let text = nginx_conf(Path::new("/x/rtmp"), "10.0.0.1:1935".parse().unwrap());
        assert!(text.contains("listen 10.0.0.1:1935;") && text.contains("record_path /x/rtmp;"), "{text}");
    }
}
