//! Compares all labels with reference labels (`--check`): the smallest number of the centroids of least reference distance, computed on the GPU
//! in float64 by a kernel that shares nothing with the strategies (`kernels/bench/reference.cu`).
//!
//! Two sets of labels are checked: those of the last iteration of the loop, which come from what a strategy carries from iteration to
//! iteration, and those that the fit returns. Each is compared with labels of the centroids that it was computed from.

use std::time::Instant;

use polars_kmeans::backend::cuda::reference_labels;
use polars_kmeans::benchmark::wrong_rows;
use polars_kmeans::{Engine, Features, KMeans, KMeansError, Strategy, reference};

/// Wrong rows that are shown.
const SHOWN: usize = 5;

/// Reference labels of some columns.
struct Judge<'c, T> {
    columns: Vec<&'c [T]>,
    /// The last centroids and their labels: strategies end with the same.
    known: Vec<(Vec<T>, Vec<u32>)>,
    seconds: f64,
}

impl<T: Engine> Judge<'_, T> {
    /// How many labels are wrong for these centroids. Shows the first of them.
    fn wrong(&mut self, labels: &[u32], centroids: &[T]) -> Result<usize, KMeansError> {
        let place = match self.known.iter().position(|(known, _)| known == centroids) {
            Some(place) => place,
            None => {
                let begin = Instant::now();
                let right = reference_labels(0, &self.columns, centroids)?;
                self.seconds += begin.elapsed().as_secs_f64();
                if self.known.len() == 2 {
                    self.known.remove(0);
                }
                self.known.push((centroids.to_vec(), right));
                self.known.len() - 1
            }
        };
        let right = &self.known[place].1;
        for row in wrong_rows(labels, right).take(SHOWN) {
            let x: Vec<T> = self.columns.iter().map(|column| column[row]).collect();
            let distance = |j: u32| centroids.chunks(x.len()).nth(j as usize).map_or(f64::NAN, |c| reference::distance(&x, c));
            let [label, right] = [labels[row], right[row]];
            println!("    row {row}: label {label} at {:e}, right is {right} at {:e}", distance(label), distance(right));
        }
        Ok(wrong_rows(labels, right).count())
    }
}

/// Checks fits by these strategies. Returns whether all labels are right. `iterations`: of the loop, if the fit has starting centroids.
pub fn check<T: Engine>(columns: &[Vec<T>], estimator: &KMeans, iterations: Option<u32>, strategies: &[Strategy]) -> bool {
    let columns: Vec<&[T]> = columns.iter().map(|column| &column[..]).collect();
    let features = Features::from_columns(columns.iter().copied()).expect("equal lengths");
    let n = features.n_rows();
    let mut judge = Judge { columns, known: Vec::new(), seconds: 0.0 };
    let mut checked = |strategy: Strategy| -> Result<usize, KMeansError> {
        let (name, estimator) = (strategy.name(), estimator.clone().strategy(strategy));
        let mut in_loop = 0;
        if let Some(iterations) = iterations {
            let looped = T::labels_of_loop(&estimator, &features, iterations)?;
            in_loop = judge.wrong(&looped.labels, &looped.centroids)?;
            println!("  {name:<20}labels of iteration {iterations:<3}  wrong: {in_loop} of {n}");
        }
        let fit = estimator.fit_features(&features, None)?;
        let at_end = judge.wrong(&fit.labels, fit.model.centroids())?;
        println!("  {name:<20}labels of the fit         wrong: {at_end} of {n}");
        for row in fit.model.history() {
            let [settled, skipped] = [row.settled, row.skipped].map(|share| 100.0 * share.unwrap_or(f64::NAN));
            let ms = 1e3 * row.seconds.unwrap_or(f64::NAN);
            println!("    iteration {:<4}{ms:>12.4} ms   settled {settled:.4} %   skipped {skipped:.4} %", row.iteration);
        }
        Ok(in_loop + at_end)
    };
    let mut right = true;
    for &strategy in if strategies.is_empty() { &[Strategy::Default] } else { strategies } {
        match checked(strategy) {
            Ok(wrong) => right &= wrong == 0,
            Err(error) => println!("  {:<20}{error}", strategy.name()),
        }
    }
    println!("  reference labels took {:.2} s", judge.seconds);
    right
}
