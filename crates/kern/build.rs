//! With the feature `bpf`: compiles every program in `bpf/` for the kernel, and its arithmetic natively for the tests. Without the
//! feature, nothing is required and nothing is done.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const REMEDY: &str = "the kernel programs in bpf/ need clang (12 or later), libelf-dev and zlib1g-dev: `./x setup` \
                      installs them. Without the feature `bpf`, everything but `anabranch cc` and `anabranch int` \
                      builds without them";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_BPF").is_none() {
        return;
    }
    let dir = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let root = dir("CARGO_MANIFEST_DIR").join("../..");
    let (bpf, out) = (root.join("bpf"), dir("OUT_DIR"));
    println!("cargo:rerun-if-changed={}", bpf.display());
    println!("cargo:rerun-if-env-changed=CLANG");
    let headers =
        PathBuf::from(env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are"));

    let mut programs: Vec<PathBuf> = fs::read_dir(&bpf)
        .expect("bpf/ can be read")
        .map(|entry| entry.expect("bpf/ can be read").path())
        .filter(|path| path.to_string_lossy().ends_with(".bpf.c"))
        .collect();
    programs.sort();
    for program in programs {
        compile(&bpf, &headers, &program, &out);
    }
    native(&bpf);
}

fn compile(bpf: &Path, headers: &Path, program: &Path, out: &Path) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let object = out.join(program.with_extension("o").file_name().expect("a file"));
    let status = Command::new(&clang)
        .current_dir(bpf)
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-I."])
        // Half of what the kernel allows.
        .arg("-Wframe-larger-than=256")
        // Keep paths of the build machine out of the object files.
        .arg(format!("-ffile-prefix-map={}=bpf", bpf.display()))
        .arg("-fdebug-compilation-dir=bpf")
        .arg("-isystem")
        .arg(headers)
        .arg("-c")
        .arg(program.file_name().expect("a file"))
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} could not compile {}: {status}; {REMEDY}", program.display()),
        Err(error) => panic!("{clang} cannot be run: {error}; {REMEDY}"),
    }
}

#[cfg(feature = "bpf")]
fn native(bpf: &Path) {
    cc::Build::new()
        .file(bpf.join("native/law.c"))
        .include(bpf)
        .warnings(true)
        .warnings_into_errors(true)
        .compile("anabranch_law");
}

#[cfg(not(feature = "bpf"))]
fn native(_: &Path) {}
