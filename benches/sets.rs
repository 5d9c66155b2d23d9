//! The same iterations by every instruction set of this machine, and with each idea of the CPU engine switched off: the time, and a hash of the
//! results, which is the same for all of them.
//!
//! `cargo bench --no-default-features --features bench --bench kmeans -- sets [NxDxK ... --kinds blobs,ties --iterations 15 --threads 0 --columns]`.
//! The hash is of labels, sizes, centroids and history. `--columns`: one array for each feature, else row by row. Runs with other
//! threads and layouts have the same hash, too, and runs on another machine with the same mathematical library, which makes the rows.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use polars_kmeans::backend::cpu::{CpuSession, UseGroups, UseIntDot};
use polars_kmeans::backend::{Session, Sessions, Sharded, Stop};
use polars_kmeans::base::progress::Watch;
use polars_kmeans::input::tile::RowBlock;
use polars_kmeans::statistics::gather;
use polars_kmeans::{DotUnit, InstructionSet};
use polars_kmeans::{Features, Init, KMeans};

use crate::Arguments;
use crate::kinds::{Kind, starting_rows};
use crate::options::{Options, Rows};

const SHAPES: [[usize; 3]; 3] = [[20_000, 256, 300], [100_000, 32, 128], [100_000, 3, 500]];

/// What is switched off, and how.
type Way = (&'static str, InstructionSet, UseGroups, UseIntDot);

fn ways() -> Vec<Way> {
    use InstructionSet::{Avx2, Avx512, Portable};
    let set = InstructionSet::detect();
    let mut ways = vec![
        ("as chosen", set, UseGroups::Auto, UseIntDot::Auto),
        ("without integer copies", set, UseGroups::Auto, UseIntDot::Never),
        ("without near centroids", set, UseGroups::Never, UseIntDot::Auto),
        ("without both", set, UseGroups::Never, UseIntDot::Never),
    ];
    for (name, unit) in [
        ("AMX", DotUnit::Amx),
        ("AVX512-VNNI", DotUnit::Avx512),
        ("AVX-VNNI", DotUnit::Avx2),
        ("words", DotUnit::Avx512Words),
        ("words, AVX2", DotUnit::Avx2Pairs),
    ] {
        if unit.or_emulated() == unit {
            ways.push((name, set, UseGroups::Auto, UseIntDot::Always(unit)));
        }
    }
    for (name, set) in [("AVX-512, without both", Avx512), ("AVX2, without both", Avx2), ("portable, without both", Portable)] {
        if set.is_available() {
            ways.push((name, set, UseGroups::Never, UseIntDot::Never));
        }
    }
    ways
}

/// Milliseconds, iterations, and the hash.
fn run(
    features: &Features<'_, f32>,
    start: &[f64],
    (_, set, groups, int_dot): Way,
    iterations: u32,
    threads: usize,
) -> (f64, usize, u64) {
    let d = features.n_features();
    let estimator = KMeans::new(start.len() / d).init(Init::Given(start.to_vec())).tol(0.0);
    let mut parts = vec![RowBlock::new(features.clone(), None)];
    let statistics = Arc::new(gather(&mut parts, &estimator.validate(d).expect("valid")).expect("finite"));
    let session = CpuSession::new(parts.remove(0), &statistics, start.len() / d, threads, set).expect("memory for it");
    let session = session.forced(groups, int_dot);
    let mut session = Sharded::new(Sessions::new(vec![Box::new(session)]), &statistics, threads).expect("one session");
    let mut centroids: Vec<f32> = start.iter().map(|c| *c as f32).collect();
    let time = Instant::now();
    let stop = Stop { changed: 0.0, shift: 0.0 };
    let advanced = session.advance(&mut centroids, stop, iterations, &mut Watch::default()).expect("it is not stopped");
    if advanced.assigned.is_none() {
        session.assign(&centroids, false).expect("finite");
    }
    let seconds = time.elapsed().as_secs_f64();
    let mut hash = DefaultHasher::new();
    session.labels().expect("labels").hash(&mut hash);
    session.sizes().expect("sizes").hash(&mut hash);
    centroids.iter().for_each(|c| c.to_bits().hash(&mut hash));
    advanced.done.iter().for_each(|done| (done.changed, done.shift.to_bits()).hash(&mut hash));
    (1e3 * seconds, advanced.done.len(), hash.finish())
}

pub fn main(arguments: Arguments) {
    let options = Options { iterations: 15, threads: vec![0], ..Options::default() }.parse(arguments);
    let kinds = options.kinds.unwrap_or(Kind::ALL.to_vec());
    for [n, d, k] in if options.shapes.is_empty() { SHAPES.to_vec() } else { options.shapes } {
        for &kind in &kinds {
            let rows = Rows::new(kind, [n, d, k], options.by_columns);
            let (features, start) = (rows.features(), starting_rows(&rows.columns, kind, k).expect("enough rows"));
            println!("{n} x {d} x {k}, {kind}: ms, iterations, hash");
            let mut first = None;
            for way in ways() {
                let (time, done, hash) = run(&features, &start, way, options.iterations, options.threads[0]);
                println!("  {:<28}{time:>10.1}{done:>5}  {hash:016x}", way.0);
                assert!(*first.get_or_insert(hash) == hash, "{}: another result", way.0);
            }
        }
    }
}
