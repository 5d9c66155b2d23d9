//! Runs the unit tests of the library: see `src/unit_tests.rs`.

use std::path::Path;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let trials = polars_kmeans::unit_tests::all().map(|test| {
        let name = test.name.strip_prefix("polars_kmeans::").unwrap_or(test.name);
        Trial::test(name, || {
            (test.run)();
            Ok(())
        })
    });
    let mut trials: Vec<Trial> = trials.collect();
    trials.sort_by(|a, b| a.name().cmp(b.name()));
    let found = trials.len();
    trials.push(Trial::test("every_test_of_the_sources_is_here", move || compare(found)));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A linker that drops what is not referred to would drop tests.
fn compare(found: usize) -> Result<(), Failed> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    if cfg!(not(all(feature = "python", feature = "arrow", feature = "papers", feature = "bench"))) || !sources.exists() {
        return Ok(());
    }
    // Long ones are beside this file.
    let written = count(&sources) + count(&sources.with_file_name("tests").join("unit"));
    if found == written { Ok(()) } else { Err(format!("{found} of the {written} tests in src were found").into()) }
}

/// Number of tests below a folder.
fn count(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries
        .map(|path| match path.is_dir() {
            true => count(&path),
            // Plain Rust plays the part of its instructions only if asked for.
            false if path.ends_with("simd/neon.rs") => 0,
            false => {
                let text = std::fs::read_to_string(&path).expect("a source file");
                text.lines().filter(|line| line.trim_start().starts_with("unit_test!(")).count()
            }
        })
        .sum()
}
