//! Python's library, for the tests, examples and benches of a build with feature `python`. They are programs of their own. The package
//! must not be linked with that library, because the program that loads the package brings one.

use std::process::Command;
use std::{env, path::PathBuf};

/// Prints the folder and the name of the library.
const ASK: &str =
    "import sysconfig; print(sysconfig.get_config_var('LIBDIR'), 'python' + sysconfig.get_config_var('LDVERSION'), sep='\\n')";

/// Links the programs with the library of `$PYO3_PYTHON`, of the virtual environment, or of `python3`.
pub fn link_programs() -> Result<(), String> {
    for name in ["PYO3_PYTHON", "VIRTUAL_ENV"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let of_environment = env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin/python"));
    let python = env::var_os("PYO3_PYTHON").map(PathBuf::from).or(of_environment).unwrap_or_else(|| "python3".into());
    let answer = Command::new(&python).args(["-c", ASK]).output().map_err(|error| format!("{}: {error}", python.display()))?;
    let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
    let Some((folder, library)) = answer.trim().split_once('\n') else {
        return Err(format!("{} did not say where its library is", python.display()));
    };
    for kind in ["tests", "examples", "benches"] {
        for argument in
            [format!("-L{folder}"), "-Wl,--as-needed".into(), format!("-l{library}"), format!("-Wl,-rpath,{folder}")]
        {
            println!("cargo::rustc-link-arg-{kind}={argument}");
        }
    }
    Ok(())
}
