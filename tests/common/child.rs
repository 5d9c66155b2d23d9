//! Tests that run in a process of their own, since a process that ends early is what they look for.

use std::process::{Command, Output};

/// Names the test that a child is to run.
const CHILD: &str = "POLARS_KMEANS_TEST_CHILD";

/// Runs `work` in a child, which is this test once more; `test` is its full name. The child has to succeed.
pub fn in_child(test: &str, work: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return work();
    }
    let output = run(test, &[]);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
        // The step that it came to says more with a trace of where it was.
        let step = text.lines().rev().find_map(|line| line.strip_prefix(STEP));
        let traced =
            step.map(|step| run(test, &[(ONLY, step)])).map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        panic!("{test} ended with {}:\n{last}\n{}", output.status, traced.unwrap_or_default());
    }
}

/// What a line starts with that names a step of a child's work.
pub const STEP: &str = "step: ";
/// The one step that a child is to take, and to trace.
pub const ONLY: &str = "POLARS_KMEANS_TEST_STEP";

fn run(test: &str, environment: &[(&str, &str)]) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    // Arenas of other threads are address space that is taken already: they would hide a limit.
    child.env("MALLOC_ARENA_MAX", "1");
    child.envs(environment.iter().copied()).output().unwrap()
}
