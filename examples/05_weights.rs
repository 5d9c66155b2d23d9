//! Weights: most rows stand for several people each, and one row has weight 0.

use std::error::Error;

use polars::prelude::*;
use polars_kmeans::{Init, KMeans};

fn main() -> Result<(), Box<dyn Error>> {
    let age = [19.0, 22.0, 35.0, 38.0, 66.0, 71.0, 30.0];
    let hours = [31.0, 28.5, 14.0, 17.5, 3.5, 6.0, 90.0];
    let people = [3u32, 2, 4, 1, 5, 2, 0];
    let survey = df!("age" => age, "hours" => hours, "people" => people)?;

    // Starting centroids, row-major. All fits below start from the same place.
    let kmeans = KMeans::new(3).init(Init::Given(vec![20.0, 30.0, 40.0, 10.0, 70.0, 5.0]));
    let weighted = kmeans.fit_weighted(&survey, ["age", "hours"], "people")?;
    println!("{}", weighted.centroids()?);

    // A row of weight 3 counts as three equal rows. The centroids are the same up to rounding.
    let repeat = |values: [f64; 7]| -> Vec<f64> {
        values.iter().zip(people).flat_map(|(value, times)| vec![*value; times as usize]).collect()
    };
    let repeated = kmeans.fit(&df!("age" => repeat(age), "hours" => repeat(hours))?, ["age", "hours"])?;
    for (one, other) in weighted.centroid_values()?.iter().zip(repeated.centroid_values()?) {
        assert!((one - other).abs() < 1e-12);
    }
    assert!((weighted.inertia() - repeated.inertia()).abs() < 1e-9);

    // Sizes count rows of positive weight. The values of the weights do not matter.
    assert_eq!(weighted.sizes(), [2, 2, 2]);
    assert_eq!(repeated.sizes(), [5, 5, 7]);

    // The last row has weight 0. It gets the label of its nearest centroid, but it does not move any centroid.
    let labels = weighted.predict(&survey)?;
    assert_eq!(labels.null_count(), 0);
    let without = kmeans.fit_weighted(&survey.head(Some(6)), ["age", "hours"], "people")?;
    assert_eq!(without.centroids()?, weighted.centroids()?);

    // Without weights, the row counts like any other, and gets a cluster of its own.
    let unweighted = kmeans.fit(&survey, ["age", "hours"])?;
    println!("{}", unweighted.centroids()?);
    assert!(unweighted.sizes().contains(&1));
    Ok(())
}
