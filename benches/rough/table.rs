//! Prints what was measured.

use polars_kmeans::backend::cpu::InDoubt;

use super::Result;
use crate::kinds::Kind;

/// Largest multiples of the blobs' times that meet the goal: of a pass in which nothing changes, and of the first iteration.
const STEADY_GOAL: f64 = 1.3;
const FIRST_GOAL: f64 = 2.0;

pub const CSV_HEAD: &str =
    "kind,rows,features,clusters,first_ms,later_ms,later_changed,steady_ms,first_few,first_all,steady_few,steady_all";

pub fn csv(result: &Result) -> String {
    let Result { kind, n, d, k, first, later, steady, changed, first_in_doubt, steady_in_doubt } = result;
    let [a, b] = [first_in_doubt, steady_in_doubt].map(|doubt| format!("{},{}", doubt.few, doubt.all));
    format!("{kind},{n},{d},{k},{first:.5},{later:.5},{changed:.6},{steady:.5},{a},{b}")
}

/// The multiples of the blobs' times: of the first iteration, of later ones, and of a pass in which nothing changes.
fn multiples(result: &Result, all: &[Result]) -> Option<[f64; 3]> {
    let shape = |r: &Result| (r.n, r.d, r.k);
    let blobs = all.iter().find(|other| other.kind == Kind::Blobs && shape(other) == shape(result))?;
    Some([result.first / blobs.first, result.later / blobs.later, result.steady / blobs.steady])
}

/// `12.5 x`, with a mark if it is above the goal.
fn marked(multiple: f64, goal: f64) -> String {
    format!("{multiple:.2}{}", if multiple > goal { " *" } else { "" })
}

fn shares(doubt: InDoubt, n: usize) -> String {
    let share = |rows: u64| match 100.0 * rows as f64 / n as f64 {
        0.0 => "0".into(),
        percent if percent < 0.001 => format!("{percent:.0e}"),
        percent => format!("{percent:.3}"),
    };
    format!("{} + {}", share(doubt.few), share(doubt.all))
}

/// One table for each number of clusters.
pub fn print(results: &[Result], clusters: &[usize]) {
    for &k in clusters {
        let mut rows = results.iter().filter(|result| result.k == k).peekable();
        let Some(Result { n, d, .. }) = rows.peek() else { continue };
        println!("\n### {n} x {d}, k = {k}\n");
        println!(
            "| data | first, ms | x blobs | later, ms | x blobs | changed, % | no change, ms | x blobs | in doubt, %: first | no change |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        for result in rows {
            let [first, later, steady] = multiples(result, results).unwrap_or([f64::NAN; 3]);
            println!(
                "| {} | {:.3} | {} | {:.3} | {later:.2} | {:.2} | {:.3} | {} | {} | {} |",
                result.kind,
                result.first,
                marked(first, FIRST_GOAL),
                result.later,
                100.0 * result.changed,
                result.steady,
                marked(steady, STEADY_GOAL),
                shares(result.first_in_doubt, result.n),
                shares(result.steady_in_doubt, result.n),
            );
        }
    }
}

/// How many fits meet the goal.
pub fn summary(results: &[Result], left_out: usize) {
    let rough: Vec<[f64; 3]> =
        results.iter().filter(|r| r.kind != Kind::Blobs).filter_map(|result| multiples(result, results)).collect();
    let count = |which: usize, goal: f64| rough.iter().filter(|multiples| multiples[which] > goal).count();
    let worst = |which: usize| rough.iter().fold(0.0f64, |worst, multiples| worst.max(multiples[which]));
    println!(
        "\n{} fits of rough data. First iteration above {FIRST_GOAL} times the blobs': {} (worst {:.2}). Pass without changes above \
         {STEADY_GOAL} times: {} (worst {:.2}).",
        rough.len(),
        count(0, FIRST_GOAL),
        worst(0),
        count(2, STEADY_GOAL),
        worst(2),
    );
    if left_out > 0 {
        println!("Left out, because the time was over: {left_out} fits.");
    }
}
