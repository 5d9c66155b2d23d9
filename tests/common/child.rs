//! Tests that run in a process of their own, because they check whether the process ends early.

use std::process::{Command, Output};

/// The name of the environment variable that tells a child which test to run.
const CHILD: &str = "POLARS_KMEANS_TEST_CHILD";

/// Runs `work` in a child process. The child runs this test again; `test` is its full name. The child must succeed.
pub fn in_child(test: &str, work: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(test) {
        return work();
    }
    let output = run(test, &[]);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n");
        // Run the last step again with a trace: this shows where the child failed.
        let step = text.lines().rev().find_map(|line| line.strip_prefix(STEP));
        let traced =
            step.map(|step| run(test, &[(ONLY, step)])).map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        panic!("{test} ended with {}:\n{last}\n{}", output.status, traced.unwrap_or_default());
    }
}

/// A line that names a step of a child's work starts with this.
pub const STEP: &str = "step: ";
/// The name of the environment variable for the one step that a child runs and traces.
pub const ONLY: &str = "POLARS_KMEANS_TEST_STEP";

fn run(test: &str, environment: &[(&str, &str)]) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    // Arenas of other threads have reserved address space already. They would hide a limit.
    child.env("MALLOC_ARENA_MAX", "1");
    child.envs(environment.iter().copied()).output().unwrap()
}
