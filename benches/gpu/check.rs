//! Compares all labels with reference labels (`--check`): the smallest number of the centroids of least reference distance, computed on the GPU
//! in float64 by a kernel that shares nothing with the strategies (`kernels/bench/reference.cu`).
//!
//! Two sets of labels are checked: those of the last iteration of the loop, which come from what a strategy carries from iteration to
//! iteration, and those that the fit returns. With `--predictions` also those that the model predicts on the GPU. Each is compared with
//! labels of the centroids that it was computed from.

use std::time::Instant;

use polars_kmeans::backend::cuda::reference_labels;
use polars_kmeans::exact::reference;
use polars_kmeans::{Device, Engine, Features, KMeans, KMeansError, Strategy};

use super::looped::{labels_of_loop, wrong_rows};
use super::options::Options;
use super::there::Columns;

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

/// Checks fits by the strategies that are asked for. Returns whether all labels are right. `iterations`: of the loop.
pub fn check<T: Engine>(columns: &[Vec<T>], estimator: &KMeans, iterations: u32, options: &Options) -> bool {
    let views: Vec<&[T]> = columns.iter().map(|column| &column[..]).collect();
    let features = Features::from_columns(views.iter().copied()).expect("equal lengths");
    let n = features.n_rows();
    let mut judge = Judge { columns: views, known: Vec::new(), seconds: 0.0 };
    let mut checked = |strategy: Strategy| -> Result<usize, KMeansError> {
        let (name, estimator) = (strategy.name(), estimator.clone().strategy(strategy));
        let mut all = 0;
        let mut compare = |what: &str, labels: &[u32], centroids: &[T]| -> Result<(), KMeansError> {
            let wrong = judge.wrong(labels, centroids)?;
            println!("  {name:<20}labels of {what:<16} wrong: {wrong} of {n}");
            all += wrong;
            Ok(())
        };
        // The loop can be watched if it starts from given rows.
        if options.init.is_none() {
            let looped = labels_of_loop(&estimator, &features, iterations)?;
            compare(&format!("iteration {iterations}"), &looped.labels, &looped.centroids)?;
        }
        let fit = estimator.fit_features(&features, None)?;
        compare("the fit", &fit.labels, fit.model.centroids())?;
        if options.flag("--predictions") {
            for (name, kernel) in [("predictions", Strategy::Default), ("mma predictions", Strategy::TensorMma)] {
                let predicted = fit.model.on(Device::Cuda(None)).strategy(kernel).predict(&features)?;
                compare(name, predicted.values(), fit.model.centroids())?;
            }
            let there = Columns::of(columns);
            let table = there.table::<T>();
            let predicted = fit.model.on(Device::Auto).predict_there(&Features::on_gpu(&table)?)?.to_vec()?;
            let predicted: Vec<u32> = predicted.into_iter().map(|label| label as u32).collect();
            compare("rows there", &predicted, fit.model.centroids())?;
        }
        for row in fit.model.history() {
            let [settled, skipped] = [row.settled, row.skipped].map(|share| 100.0 * share.unwrap_or(f64::NAN));
            let ms = 1e3 * row.seconds.unwrap_or(f64::NAN);
            println!("    iteration {:<4}{ms:>12.4} ms   settled {settled:.4} %   skipped {skipped:.4} %", row.iteration);
        }
        Ok(all)
    };
    let mut right = true;
    for &strategy in if options.strategies.is_empty() { &[Strategy::Default] } else { &options.strategies[..] } {
        match checked(strategy) {
            Ok(wrong) => right &= wrong == 0,
            Err(error) => println!("  {:<20}{error}", strategy.name()),
        }
    }
    println!("  reference labels took {:.2} s", judge.seconds);
    right
}
