//! Finds nvcc, and says what to install where there is none.

use crate::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const WHEELS: &str = "nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
                      nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85";

pub struct Nvcc {
    pub path: PathBuf,
    /// As `nvcc --version` prints it: `13.0.88`.
    pub version: String,
    release: (u32, u32),
    /// Whether it may leave PTX for later GPUs.
    pub ptx: bool,
}

/// None where the build succeeds without kernels: on systems without CUDA, on docs.rs (it has no nvcc), and on Windows if no
/// nvcc is found (no wheel brings one there).
pub fn nvcc_of_target() -> Result<Option<Nvcc>> {
    let system = env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let processor = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    let known = match system.as_str() {
        "linux" => ["x86_64", "aarch64"].contains(&processor.as_str()),
        "windows" => processor == "x86_64",
        _ => false,
    };
    if !known || env::var_os("DOCS_RS").is_some() {
        return Ok(None);
    }
    match find_nvcc() {
        Err(message) if system == "windows" => {
            println!("cargo::warning=built without CUDA kernels. {}", message.replace('\n', " "));
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// The first nvcc 13.0 of all places. Any other 13 is good for machine code, which every driver of CUDA 13 runs. But a driver
/// of 13.0 cannot read the PTX that it writes.
fn find_nvcc() -> Result<Nvcc> {
    let mut newer = None;
    let mut found = Vec::new();
    for path in places() {
        let Some(nvcc) = path.is_file().then(|| ask_version(&path)).flatten() else { continue };
        match nvcc.release {
            (13, 0) => return Ok(nvcc),
            (13, _) if newer.is_none() => newer = Some(nvcc),
            _ => found.push(format!("{} is {}", path.display(), nvcc.version)),
        }
    }
    if let Some(nvcc) = newer {
        println!(
            "cargo::warning={} is {}: the kernels are built without PTX, for the architectures named alone. With nvcc 13.0 they \
             would run on later GPUs too: pip install {WHEELS}",
            nvcc.path.display(),
            nvcc.version
        );
        return Ok(nvcc);
    }
    let found = if found.is_empty() { "no nvcc".into() } else { found.join(", ") };
    let nvcc = env::var_os("NVCC").map_or(String::new(), |path| format!(" where NVCC={} says", path.display()));
    Err(format!(
        "Feature `cuda` compiles its kernels with nvcc 13.0; found{nvcc}: {found}.\n\
         Get it, without a CUDA toolkit or a GPU: pip install {WHEELS}\n\
         It is looked for at $NVCC, in the Python environment (VIRTUAL_ENV, .venv, PYTHONPATH, PYO3_PYTHON, python3), in CUDA_HOME \
         and CUDA_PATH, and on the PATH. Without feature `cuda` none is needed."
    ))
}

fn ask_version(path: &Path) -> Option<Nvcc> {
    let output = Command::new(path).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split(", V").nth(1)?.split_whitespace().next()?.to_owned();
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    let release = (numbers.next()??, numbers.next()??);
    Some(Nvcc { path: path.into(), version, release, ptx: release == (13, 0) })
}

/// Where nvcc may be, best place first. Most of these do not exist.
fn places() -> Vec<PathBuf> {
    let name = format!("nvcc{}", env::consts::EXE_SUFFIX);
    if let Some(nvcc) = env::var_os("NVCC") {
        return vec![nvcc.into()];
    }
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let list = |name: &str| env::var_os(name).map_or(Vec::new(), |value| env::split_paths(&value).collect());
    let path = list("PATH");

    // pip builds in an environment of its own. Only PATH and PYTHONPATH lead to it.
    let environments =
        variable("VIRTUAL_ENV").into_iter().chain(path.iter().filter_map(|bin| bin.parent().map(Path::to_owned)));
    let mut sites: Vec<PathBuf> = environments.chain([".venv".into()]).flat_map(|root| site_packages(&root)).collect();
    sites.extend(list("PYTHONPATH"));
    let pythons = [env::var_os("PYO3_PYTHON"), env::var_os("PYTHON_SYS_EXECUTABLE"), Some("python3".into())];
    sites.extend(pythons.into_iter().flatten().flat_map(module_path));

    let mut places: Vec<PathBuf> = sites.iter().map(|site| site.join("nvidia/cu13/bin").join(&name)).collect();
    places.extend(["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|root| Some(variable(root)?.join("bin").join(&name))));
    places.extend(path.iter().map(|bin| bin.join(&name)));
    // A relative path to a program would be searched on the PATH, so paths are made absolute.
    places.into_iter().filter_map(|place| std::path::absolute(place).ok()).collect()
}

/// The directories of a Python environment that hold packages, by their names on Unix (with Debian's) and on Windows.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    let mut sites = vec![root.join("Lib/site-packages")];
    for lib in ["lib", "lib64", "local/lib"] {
        for entry in fs::read_dir(root.join(lib)).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("python3") {
                sites.extend(["site-packages", "dist-packages"].map(|name| entry.path().join(name)));
            }
        }
    }
    sites
}

fn module_path(python: OsString) -> Vec<PathBuf> {
    let output = Command::new(python).args(["-c", "import sys; print('\\n'.join(sys.path))"]).output();
    let text = output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

/// nvcc needs the system's C++ compiler, and its message is unclear if there is none.
pub fn need_host_compiler() -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    if cfg!(windows) || env::var_os("NVCC_CCBIN").is_some() || env::split_paths(&path).any(|bin| bin.join("g++").is_file()) {
        return Ok(());
    }
    Err("nvcc reads the kernels by a host C++ compiler: found no g++ on the PATH.\n\
         Install it (Debian, Ubuntu: apt install g++), or name another in NVCC_CCBIN."
        .into())
}
