//! Fit a frame, look at the centroids, label rows: `cargo run --example 01_quickstart`

use std::error::Error;

use polars::prelude::*;
use polars_kmeans::KMeans;

fn main() -> Result<(), Box<dyn Error>> {
    let trips = df!(
        "minutes" => [4.0, 5.5, 6.0, 7.0, 21.0, 23.5, 24.0, 61.0, 66.0, 70.0],
        "km" => [0.4, 0.6, 0.5, 0.7, 6.1, 7.0, 6.6, 48.0, 52.5, 55.0],
    )?;

    // Three clusters of the named columns. The same seed gives the same bits, on any machine.
    let kmeans = KMeans::new(3).seed(1);
    let model = kmeans.fit(&trips, ["minutes", "km"])?;
    println!("{}", model.centroids()?);
    println!("{} iterations, inertia {:.3}", model.n_iter(), model.inertia());
    assert_eq!(kmeans.fit(&trips, ["minutes", "km"])?.centroids()?, model.centroids()?);

    // Every row gets the label of its nearest centroid. The numbering of the clusters has no meaning.
    let labels = model.predict(&trips)?;
    let mut labelled = trips.clone();
    labelled.with_column(labels.clone().into_column())?;
    println!("{labelled}");
    let labels: Vec<u32> = labels.into_no_null_iter().collect();
    assert!(labels[..4].iter().all(|&label| label == labels[0]), "the walks");
    assert!(labels[4..7].iter().all(|&label| label == labels[4]), "the bicycle rides");
    assert!(labels[7..].iter().all(|&label| label == labels[7]), "the drives");

    // New rows get labels too, if the frame has columns of those names. A row with a missing value gets no label.
    let new = df!("km" => [Some(0.9), None, Some(40.0)], "minutes" => [10.0, 20.0, 45.0])?;
    let predicted: Vec<Option<u32>> = model.predict(&new)?.iter().collect();
    assert_eq!(predicted, [Some(labels[0]), None, Some(labels[7])]);

    // The score is minus the inertia of the rows, as in scikit-learn.
    let score = model.score(&trips)?;
    assert!((score + model.inertia()).abs() < 1e-9);
    println!("score {score:.3}");
    Ok(())
}
