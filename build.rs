//! Compiles the CUDA kernels if feature `cuda` is on: each `kernels/*.cu` becomes one fat binary, which the library embeds.
//!
//! ```text
//! find nvcc 13.0            NVCC, the wheels of the Python environment, CUDA_HOME, PATH
//! for each kernels/NAME.cu
//!     key = hash(its source, the headers that it includes, flags, nvcc's version)
//!     if target/kernels/NAME-key.fatbin is missing:  nvcc -fatbin, and ptxas's report beside it
//!     copy both to OUT_DIR/NAME.fatbin, OUT_DIR/NAME.report
//! OUT_DIR/kernels.rs        KERNELS: (name, bytes) of all of them
//! ```
//! Each profile and feature set has its own OUT_DIR, but all share the cache. So `make test` compiles a kernel once, not six
//! times. The build needs no GPU, driver or CUDA toolkit.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Mutex;
use std::{env, fs, thread};

/// Machine code for each generation, and PTX for later ones. Machine code also runs on later minor versions of its major
/// version (86 can run code for 80, but less well). 90a is an exception: its `wgmma` and `setmaxnreg` exist on 9.0 only.
const ARCHITECTURES: &str = "80+ptx,86,89,90a,100,120";

/// The kernels write every operation that reaches a result with an explicit rounding. These flags keep the compiler from
/// changing the other operations. Line information doubles the size, so it is off: `POLARS_KMEANS_CUDA_FLAGS=-lineinfo` adds it
/// for a profiler.
const FLAGS: &[&str] = &[
    "-std=c++17",
    "-O3",
    "-fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--compress-mode=size",
    "-Xptxas=-v",
    "-Werror=all-warnings",
];

const WHEELS: &str = "nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
                      nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85";

type Result<T> = std::result::Result<T, String>;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-changed=kernels");
    // CUDA_HOME, PATH and the like are left out on purpose: a build stays valid when another shell finds another copy of nvcc.
    for name in ["NVCC", "POLARS_KMEANS_CUDA_ARCHS", "POLARS_KMEANS_CUDA_FLAGS", "POLARS_KMEANS_KERNEL_CACHE"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if let Err(message) = build() {
        let (first, rest) = message.split_once('\n').unwrap_or((&message, ""));
        println!("cargo::error={first}");
        eprintln!("{rest}");
        exit(1);
    }
}

fn build() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // The test of the reports reads all files there, so files of removed modules must go.
    for file in ["fatbin", "report"].iter().map(|kind| files(&out, kind)).collect::<Result<Vec<_>>>()?.concat() {
        fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let Some(nvcc) = nvcc_of_target()? else { return write_table(&out, &[]) };
    let wanted = env::var("POLARS_KMEANS_CUDA_ARCHS").ok().filter(|wanted| wanted != "all");
    let architectures = wanted.as_deref().unwrap_or(ARCHITECTURES);
    let architectures = architectures.split(',').map(|item| Architecture::parse(item.trim())).collect::<Result<Vec<_>>>()?;
    let cache = cache_directory(&out);
    fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;

    let mut modules = Vec::new();
    for file in files(Path::new("kernels"), "cu")? {
        modules.extend(Module::read(&file, &architectures, &nvcc)?);
    }
    modules.sort_by(|a, b| a.name.cmp(&b.name));
    compile(&modules, &nvcc, &cache)?;
    for module in &modules {
        for kind in ["fatbin", "report"] {
            copy(&module.cached(&cache, kind), &out.join(format!("{}.{kind}", module.name)))?;
        }
    }
    write_table(&out, &modules)
}

// ---------------------------------------------------------------------------------------------------------------- modules

/// One item of `POLARS_KMEANS_CUDA_ARCHS`: `90a` is machine code, `80+ptx` machine code and PTX.
#[derive(Clone)]
struct Architecture {
    name: String,
    ptx: bool,
}

impl Architecture {
    fn parse(item: &str) -> Result<Self> {
        let (name, ptx) = item.strip_suffix("+ptx").map_or((item, false), |name| (name, true));
        let digits = name.trim_end_matches(['a', 'f']);
        if digits.len() >= 2 && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self { name: name.into(), ptx });
        }
        Err(format!(
            "POLARS_KMEANS_CUDA_ARCHS: expected \"all\" or architectures such as \"90a\" or {ARCHITECTURES:?}, got {item:?}"
        ))
    }
}

/// One `kernels/NAME.cu`.
struct Module {
    name: String,
    arguments: Vec<String>,
    key: u64,
    /// Bytes of its own source. The longest sources are compiled first.
    length: usize,
}

impl Module {
    /// None if the file is for none of the architectures. A line `// Architectures: 90a` in the file limits it to these.
    fn read(file: &Path, architectures: &[Architecture], nvcc: &Nvcc) -> Result<Option<Self>> {
        let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            return Err(format!("{}: a module's name is lower case letters, digits and underscores", file.display()));
        }
        let sources = with_headers(file)?;
        let own = &sources[file];
        let only = own.lines().find_map(|line| line.strip_prefix("// Architectures:"));
        let wanted = |one: &&Architecture| only.is_none_or(|only| only.split(',').any(|name| name.trim() == one.name));
        let mut arguments: Vec<String> = FLAGS.iter().map(|&flag| flag.into()).collect();
        arguments.extend(env::var("POLARS_KMEANS_CUDA_FLAGS").unwrap_or_default().split_whitespace().map(str::to_owned));
        let without_code = arguments.len();
        for Architecture { name, ptx } in architectures.iter().filter(wanted) {
            arguments.push(format!("-gencode=arch=compute_{name},code=sm_{name}"));
            if *ptx && nvcc.ptx {
                arguments.push(format!("-gencode=arch=compute_{name},code=compute_{name}"));
            }
        }
        if arguments.len() == without_code {
            return Ok(None);
        }
        arguments.extend(["-fatbin".into(), format!("kernels/{name}.cu")]);
        let mut hasher = DefaultHasher::new();
        (&nvcc.version, &arguments, &sources).hash(&mut hasher);
        Ok(Some(Self { length: own.len(), name, arguments, key: hasher.finish() }))
    }

    fn cached(&self, cache: &Path, kind: &str) -> PathBuf {
        cache.join(format!("{}-{:016x}.{kind}", self.name, self.key))
    }

    fn compile(&self, nvcc: &Nvcc, cache: &Path, threads: usize) -> Result<()> {
        let unfinished = self.cached(cache, &format!("{}.tmp", std::process::id()));
        // Paths are relative to the crate's root, so the bytes do not depend on the crate's folder.
        let output = Command::new(&nvcc.path)
            .args(&self.arguments)
            .args(["--threads".into(), threads.to_string()])
            .args([OsStr::new("-o"), unfinished.as_os_str()])
            .output()
            .map_err(|error| format!("{}: {error}", nvcc.path.display()))?;
        let report = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        if !output.status.success() {
            let _ = fs::remove_file(&unfinished);
            // To keep the message short, ptxas's figures of the kernels that did compile are left out.
            let dull = |line: &&str| !line.starts_with("ptxas info") && !line.starts_with("    ") || line.contains("error");
            let lines: Vec<&str> = report.lines().filter(dull).collect();
            return Err(format!("kernels/{}.cu: {} failed\n{}", self.name, nvcc.path.display(), lines.join("\n")));
        }
        // The binary is renamed into place last. So if it is there, the report is there too, and both are complete.
        let report_file = self.cached(cache, "report");
        fs::write(&report_file, report).map_err(|error| format!("{}: {error}", report_file.display()))?;
        fs::rename(&unfinished, self.cached(cache, "fatbin")).map_err(|error| format!("{}: {error}", unfinished.display()))
    }
}

/// A source and all headers of this project that it includes, with their text. `#include <...>` belongs to nvcc, whose version
/// is in the key.
fn with_headers(file: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut texts = BTreeMap::new();
    let mut queue = VecDeque::from([file.to_owned()]);
    while let Some(file) = queue.pop_front() {
        if texts.contains_key(&file) {
            continue;
        }
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        for line in text.lines() {
            let include = line.trim_start().strip_prefix('#').and_then(|line| line.trim_start().strip_prefix("include"));
            if let Some(name) =
                include.and_then(|rest| rest.trim_start().strip_prefix('"')).and_then(|rest| rest.split('"').next())
            {
                queue.push_back(file.with_file_name(name));
            }
        }
        texts.insert(file, text);
    }
    Ok(texts)
}

fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
    let paths =
        entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| format!("{}: {error}", directory.display())));
    Ok(paths.collect::<Result<Vec<_>>>()?.into_iter().filter(|path| path.extension() == Some(extension.as_ref())).collect())
}

/// Compiles what is not in the cache, with as many processes at once as cargo has jobs.
fn compile(modules: &[Module], nvcc: &Nvcc, cache: &Path) -> Result<()> {
    let mut missing: Vec<&Module> = modules.iter().filter(|module| !module.cached(cache, "fatbin").exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    need_host_compiler()?;
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let jobs = thread::available_parallelism().map_or(jobs, |cores| cores.get().min(jobs)).max(1);
    let workers = jobs.min(missing.len());
    missing.sort_by_key(|module| module.length);
    let queue = Mutex::new(missing);
    let errors = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(module) = queue.lock().unwrap().pop() else { break };
                    if let Err(error) = module.compile(nvcc, cache, jobs.div_ceil(workers)) {
                        errors.lock().unwrap().push(error);
                    }
                }
            });
        }
    });
    let errors = errors.into_inner().unwrap();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// `<target>/kernels`. Cargo does not name the target directory, but OUT_DIR lies in it:
/// `<target>/[triple/]profile/build/x/out`.
fn cache_directory(out: &Path) -> PathBuf {
    if let Some(cache) = env::var_os("POLARS_KMEANS_KERNEL_CACHE") {
        return cache.into();
    }
    let triple = env::var("TARGET").unwrap_or_default();
    let above = out.ancestors().nth(4).unwrap_or(out);
    let target = if above.file_name() == Some(OsStr::new(&triple)) { above.parent().unwrap_or(above) } else { above };
    target.join("kernels")
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

/// Writes `kernels.rs`. Fat binaries are aligned, because they are read in words of eight bytes.
fn write_table(out: &Path, modules: &[Module]) -> Result<()> {
    let mut text = String::from("#[repr(C, align(8))]\n#[allow(dead_code)]\nstruct Aligned<const N: usize>([u8; N]);\n");
    let mut rows = String::new();
    for Module { name, .. } in modules {
        let length = fs::metadata(out.join(format!("{name}.fatbin"))).map_err(|error| error.to_string())?.len();
        let upper = name.to_ascii_uppercase();
        text += &format!("static K_{upper}: Aligned<{length}> = Aligned(*include_bytes!(\"{name}.fatbin\"));\n");
        rows += &format!("    (\"{name}\", &K_{upper}.0),\n");
    }
    text += &format!("/// Each module's name and fat binary, by name.\npub static KERNELS: &[(&str, &[u8])] = &[\n{rows}];\n");
    fs::write(out.join("kernels.rs"), text).map_err(|error| format!("kernels.rs: {error}"))
}

// ------------------------------------------------------------------------------------------------------------------- nvcc

struct Nvcc {
    path: PathBuf,
    /// As `nvcc --version` prints it: `13.0.88`.
    version: String,
    release: (u32, u32),
    ptx: bool,
}

/// None where the build succeeds without kernels: on systems without CUDA, on docs.rs (it has no nvcc), and on Windows if no
/// nvcc is found (no wheel brings one there).
fn nvcc_of_target() -> Result<Option<Nvcc>> {
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
fn need_host_compiler() -> Result<()> {
    let path = env::var_os("PATH").unwrap_or_default();
    if cfg!(windows) || env::var_os("NVCC_CCBIN").is_some() || env::split_paths(&path).any(|bin| bin.join("g++").is_file()) {
        return Ok(());
    }
    Err("nvcc reads the kernels by a host C++ compiler: found no g++ on the PATH.\n\
         Install it (Debian, Ubuntu: apt install g++), or name another in NVCC_CCBIN."
        .into())
}
