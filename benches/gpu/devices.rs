//! One GPU beside several: the same fit on each list of devices, in turn.

use std::time::Instant;

use polars_kmeans::model::Fitted;
use polars_kmeans::{Device, Engine, KMeans};

use crate::data::features_of;

/// Milliseconds of one fit.
struct Times {
    whole: f64,
    /// The mean over all iterations, over all but the first, and of the last.
    mean: f64,
    later: f64,
    last: f64,
    each: Vec<f64>,
}

impl Times {
    fn of<T: Engine>(whole: f64, fitted: &Fitted<T>) -> Self {
        let each: Vec<f64> = fitted.model.history().iter().map(|row| 1e3 * row.seconds.unwrap_or(f64::NAN)).collect();
        let mean = |each: &[f64]| each.iter().sum::<f64>() / each.len() as f64;
        let later = mean(&each[usize::from(each.len() > 1)..]);
        Self { whole: 1e3 * whole, mean: mean(&each), later, last: each[each.len() - 1], each }
    }
}

/// Prints one line per list of devices: the least times of some fits.
pub fn report<T: Engine>(columns: &[Vec<T>], estimator: &KMeans, devices: &[Device]) {
    let features = features_of(columns);
    let mut first: Option<(u64, Times)> = None;
    for &device in devices {
        let estimator = estimator.clone().device(device);
        let mut least: Option<Times> = None;
        let (mut digest, mut reason) = (0, String::new());
        let begun = Instant::now();
        for fit in 0..8 {
            if fit > 2 && begun.elapsed().as_secs_f64() > 6.0 {
                break;
            }
            let begin = Instant::now();
            let fitted = match estimator.fit_features(&features, None) {
                Ok(fitted) => fitted,
                Err(error) => return println!("  {device}: {error}"),
            };
            let times = Times::of(begin.elapsed().as_secs_f64(), &fitted);
            digest = super::digest(&fitted);
            reason.clone_from(&fitted.choice.reason);
            least = Some(match least {
                None => times,
                Some(best) => Times {
                    whole: best.whole.min(times.whole),
                    mean: best.mean.min(times.mean),
                    later: best.later.min(times.later),
                    last: best.last.min(times.last),
                    each: if times.mean < best.mean { times.each } else { best.each },
                },
            });
        }
        let Some(Times { whole, mean, later, last, each }) = least else { return };
        let (other, one) = first.get_or_insert_with(|| (digest, Times { whole, mean, later, last, each: Vec::new() }));
        let same = if *other == digest { "same bits" } else { "OTHER BITS" };
        println!(
            "  {device:<24} ms an iteration: mean {mean:.4} ({:.2}x), later {later:.4} ({:.2}x), last {last:.4} ({:.2}x); \
             fit {whole:.1} ms ({:.2}x); {same}",
            one.mean / mean,
            one.later / later,
            one.last / last,
            one.whole / whole,
        );
        let each: Vec<String> = each.iter().take(24).map(|ms| format!("{ms:.3}")).collect();
        println!("    {reason}\n    each: {}", each.join(" "));
    }
}
