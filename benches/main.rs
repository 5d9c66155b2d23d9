//! All benches, in one program.
//!
//! ```text
//! cargo bench --no-default-features --features bench --bench kmeans -- NAME [ARGUMENTS]            the CPU
//! cargo bench --no-default-features --features bench,papers --bench kmeans -- NAME [ARGUMENTS]     GPUs too
//! ```
//! The head of each file says what it times and which arguments it takes.

mod data;
mod engine;
#[cfg(feature = "papers")]
mod gpu;
mod iterations;
mod kinds;
mod options;
mod quads;
mod rough;
mod seeding;
mod sets;
mod threads;

use std::time::Instant;

/// The rest of the command line.
type Arguments = std::iter::Skip<std::env::Args>;
type Bench = (&'static str, fn(Arguments));

const BENCHES: &[Bench] = &[
    ("engine", engine::main),
    #[cfg(feature = "papers")]
    ("gpu", gpu::main),
    ("iterations", iterations::main),
    ("quads", quads::main),
    ("rough", rough::main),
    ("seeding", seeding::main),
    ("sets", sets::main),
    ("threads", threads::main),
];

fn main() {
    // Cargo's own argument comes first or last.
    let mut arguments = std::env::args().skip(1);
    let name = arguments.find(|argument| argument != "--bench");
    match BENCHES.iter().find(|(known, _)| name.as_deref() == Some(known)) {
        Some((_, bench)) => bench(arguments),
        None => {
            let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
            eprintln!("expected the name of a bench: {}", names.join(", "));
            std::process::exit(2);
        }
    }
}

/// How long some work takes, and its result.
fn seconds<R>(work: impl FnOnce() -> R) -> (f64, R) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64(), result)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
