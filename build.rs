//! Links tests with Python's library if features `python` and `tests` are on: `build/python.rs`.
//!
//! Compiles the CUDA kernels if feature `cuda` is on: each `kernels/FOLDER/NAME.cu` becomes one fat binary, which the library embeds.
//!
//! ```text
//! OUT_DIR/arguments.rs               the structs that kernels take, in Rust: build/arguments.rs reads them in kernels/
//! find nvcc 13.0                     NVCC, the wheels of the Python environment, CUDA_HOME, PATH
//! for each kernels/FOLDER/NAME.cu    those in kernels/papers and kernels/bench only with the feature of that name
//!     OUT_DIR/NAME.cu                includes it, and asserts the layouts of its structs
//!     key = hash(these assertions, its source, the headers that it includes, flags, nvcc's version)
//!     if target/kernels/NAME-key.fatbin is missing:  nvcc -fatbin, and ptxas's report beside it
//!     copy both to OUT_DIR/NAME.fatbin, OUT_DIR/NAME.report
//! OUT_DIR/kernels.rs                 KERNELS: (name, bytes) of all of them. ARCHITECTURES: what they are for
//! ```
//! POLARS_KMEANS_CUDA_ARCHS says what kernels are for. "native", the default: the GPUs of this machine, or none. "all": a wheel to
//! share. Or a list such as "90a,100" or "90a,native".
//!
//! Each profile and feature set has its own OUT_DIR, but all share the cache. So a kernel is compiled once. The build needs no GPU,
//! driver or CUDA toolkit.

#[path = "build/arguments.rs"]
mod arguments;
#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/python.rs"]
mod python;

use arguments::{Arguments, Texts};
use nvcc::{Nvcc, need_host_compiler, nvcc_of_target};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::sync::Mutex;
use std::{env, fs, thread};

/// What `POLARS_KMEANS_CUDA_ARCHS=all` means: machine code for each generation, and PTX for later ones. Machine code also runs on
/// later minor versions of its major version (86 can run code for 80, but less well). 90a is an exception: its `wgmma` and
/// `setmaxnreg` exist on 9.0 only.
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

type Result<T> = std::result::Result<T, String>;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    if has("PYTHON") && has("TESTS") {
        python::link_programs().unwrap_or_else(|error| println!("cargo::error={error}"));
    }
    if !has("CUDA") {
        return;
    }
    println!("cargo::rerun-if-changed=kernels");
    // CUDA_HOME, PATH and the like are left out on purpose: a build stays valid when another shell finds another copy of nvcc.
    for name in ["NVCC", "DOCS_RS", "POLARS_KMEANS_CUDA_ARCHS", "POLARS_KMEANS_CUDA_FLAGS", "POLARS_KMEANS_KERNEL_CACHE"] {
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
    for kind in ["fatbin", "report"] {
        for file in files(&out, kind)? {
            fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        }
    }
    let sources = files(Path::new("kernels"), "cu")?;
    let mut texts = files(Path::new("kernels"), "cuh")?;
    texts.extend_from_slice(&sources);
    let texts = texts.into_iter().map(|file| Ok((file.clone(), read(&file)?))).collect::<Result<BTreeMap<_, _>>>()?;
    let sources =
        sources.into_iter().map(|file| Ok((file.clone(), with_headers(&file, &texts)?))).collect::<Result<Vec<_>>>()?;
    let kernel_arguments = Arguments::read(&sources)?;
    write(&out.join("arguments.rs"), &kernel_arguments.rust()?)?;

    let Some(nvcc) = nvcc_of_target()? else { return write_table(&out, &[], "") };
    let wanted = named_architectures(&env::var("POLARS_KMEANS_CUDA_ARCHS").unwrap_or_else(|_| "native".into()));
    if wanted.is_empty() {
        println!(
            "cargo::warning=built without CUDA kernels: no GPU of compute capability 8.0 or newer was found here. \
             POLARS_KMEANS_CUDA_ARCHS=all compiles them for all GPUs, which takes some minutes"
        );
        return write_table(&out, &[], "");
    }
    println!("cargo::warning=the CUDA kernels are compiled for compute capability {wanted}");
    let architectures = wanted.split(',').map(|item| Architecture::parse(item.trim())).collect::<Result<Vec<_>>>()?;
    let cache = cache_directory(&out);
    fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;

    let left_out = |file: &Path| {
        let without = |feature: &str| env::var_os(format!("CARGO_FEATURE_{}", feature.to_uppercase())).is_none();
        arguments::FEATURES.iter().any(|feature| file.starts_with(format!("kernels/{feature}")) && without(feature))
    };
    let mut modules: Vec<Module> = Vec::new();
    for (file, texts) in sources.iter().filter(|(file, _)| !left_out(file)) {
        let assertions = kernel_arguments.cuda_assertions(texts);
        let Some(module) = Module::read(file, texts, &assertions, &architectures, &nvcc)? else { continue };
        if let Some(other) = modules.iter().find(|other| other.name == module.name) {
            return Err(format!("{} and {} have the same name", other.source.display(), file.display()));
        }
        write(&out.join(format!("{}.cu", module.name)), &module.text)?;
        modules.push(module);
    }
    modules.sort_by(|a, b| a.name.cmp(&b.name));
    compile(&modules, &nvcc, &cache, &out)?;
    for module in &modules {
        for kind in ["fatbin", "report"] {
            copy(&module.cached(&cache, kind), &out.join(format!("{}.{kind}", module.name)))?;
        }
    }
    write_table(&out, &modules, &wanted)
}

/// A list of architectures in which "all" and "native" are replaced by what they mean, each architecture once.
fn named_architectures(wanted: &str) -> String {
    let mut names = Vec::new();
    for item in wanted.split(',').map(str::trim) {
        let meant = match item {
            "all" => ARCHITECTURES.into(),
            "native" => native(),
            _ => item.into(),
        };
        for name in meant.split(',').filter(|name| !name.is_empty()) {
            if !names.iter().any(|other| other == name) {
                names.push(name.to_owned());
            }
        }
    }
    names.join(",")
}

/// The GPUs of this machine, as `POLARS_KMEANS_CUDA_ARCHS` names them. Empty where there is none.
fn native() -> String {
    let asked = Command::new("nvidia-smi").args(["--query-gpu=compute_cap", "--format=csv,noheader"]).output();
    let answer = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let capabilities = answer.lines().filter_map(|line| line.trim().replace('.', "").parse::<u32>().ok());
    let known: BTreeSet<u32> = capabilities.filter(|capability| *capability >= 80).collect();
    let names = known.iter().map(|capability| if *capability == 90 { "90a".into() } else { capability.to_string() });
    names.collect::<Vec<_>>().join(",")
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
            "POLARS_KMEANS_CUDA_ARCHS: expected \"all\", \"native\" or architectures such as \"90a\" or {ARCHITECTURES:?}, got {item:?}"
        ))
    }
}

/// One `kernels/FOLDER/NAME.cu`.
struct Module {
    name: String,
    source: PathBuf,
    /// What nvcc compiles: the source, then the assertions.
    text: String,
    arguments: Vec<String>,
    key: u64,
    /// Bytes of its own source. The longest sources are compiled first.
    length: usize,
}

impl Module {
    /// None if the file is for none of the architectures. A line `// Architectures: 90a` in the file limits it to these.
    fn read(file: &Path, texts: &Texts, assertions: &str, architectures: &[Architecture], nvcc: &Nvcc) -> Result<Option<Self>> {
        let name = file.file_stem().and_then(OsStr::to_str).unwrap_or_default().to_owned();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            return Err(format!("{}: a module's name is lower case letters, digits and underscores", file.display()));
        }
        let own = &texts[file];
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
        arguments.extend(["-fatbin".into(), format!("{name}.cu")]);
        let path = file.to_string_lossy().replace('\\', "/");
        let text = format!("#include \"{path}\"\n#include <cstddef>\n{assertions}");
        let mut hasher = DefaultHasher::new();
        (&nvcc.version, &arguments, &text, texts).hash(&mut hasher);
        Ok(Some(Self { length: own.len(), name, source: file.into(), text, arguments, key: hasher.finish() }))
    }

    fn cached(&self, cache: &Path, kind: &str) -> PathBuf {
        cache.join(format!("{}-{:016x}.{kind}", self.name, self.key))
    }

    fn compile(&self, nvcc: &Nvcc, cache: &Path, out: &Path, threads: usize) -> Result<()> {
        let unfinished = self.cached(cache, &format!("{}.tmp", std::process::id()));
        let root = env::current_dir().map_err(|error| error.to_string())?;
        // nvcc runs where the file lies, so the bytes do not depend on that folder.
        let output = Command::new(&nvcc.path)
            .current_dir(out)
            .args(&self.arguments)
            .args([OsStr::new("-I"), root.as_os_str()])
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
            return Err(format!("{}: {} failed\n{}", self.source.display(), nvcc.path.display(), lines.join("\n")));
        }
        // The binary is renamed into place last. So if it is there, the report is there too, and both are complete.
        let report_file = self.cached(cache, "report");
        write(&report_file, &report)?;
        fs::rename(&unfinished, self.cached(cache, "fatbin")).map_err(|error| format!("{}: {error}", unfinished.display()))
    }
}

/// A source and all headers of this project that it includes, by their paths relative to the file that includes them.
/// `#include <...>` belongs to nvcc, whose version is in the key.
fn with_headers(file: &Path, all: &Texts) -> Result<Texts> {
    let mut texts = BTreeMap::new();
    let mut queue = VecDeque::from([file.to_owned()]);
    while let Some(file) = queue.pop_front() {
        if texts.contains_key(&file) {
            continue;
        }
        let text = all.get(&file).ok_or_else(|| format!("{}: no such file", file.display()))?;
        for line in text.lines() {
            let include = line.trim_start().strip_prefix('#').and_then(|line| line.trim_start().strip_prefix("include"));
            if let Some(name) =
                include.and_then(|rest| rest.trim_start().strip_prefix('"')).and_then(|rest| rest.split('"').next())
            {
                queue.push_back(beside(&file, name));
            }
        }
        texts.insert(file, text.clone());
    }
    Ok(texts)
}

/// The path of `name` relative to the folder of `file`, without `..`.
fn beside(file: &Path, name: &str) -> PathBuf {
    let mut path = file.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(name) {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

/// The files with this extension in a folder and in the folders in it, sorted. None if there is no such folder.
fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", directory.display()))?.path();
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension() == Some(extension.as_ref()) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Compiles what is not in the cache, with as many processes at once as cargo has jobs.
fn compile(modules: &[Module], nvcc: &Nvcc, cache: &Path, out: &Path) -> Result<()> {
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
                    if let Err(error) = module.compile(nvcc, cache, out, jobs.div_ceil(workers)) {
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
fn write_table(out: &Path, modules: &[Module], architectures: &str) -> Result<()> {
    let mut text = String::from("#[repr(C, align(8))]\n#[allow(dead_code)]\nstruct Aligned<const N: usize>([u8; N]);\n");
    let mut rows = String::new();
    for Module { name, .. } in modules {
        let length = fs::metadata(out.join(format!("{name}.fatbin"))).map_err(|error| error.to_string())?.len();
        let upper = name.to_ascii_uppercase();
        text += &format!("static K_{upper}: Aligned<{length}> = Aligned(*include_bytes!(\"{name}.fatbin\"));\n");
        rows += &format!("    (\"{name}\", &K_{upper}.0),\n");
    }
    text += &format!(
        "/// What the kernels are compiled for. Empty without kernels.\npub const ARCHITECTURES: &str = {architectures:?};\n"
    );
    text += &format!("/// Each module's name and fat binary, by name.\npub static KERNELS: &[(&str, &[u8])] = &[\n{rows}];\n");
    write(&out.join("kernels.rs"), &text)
}
