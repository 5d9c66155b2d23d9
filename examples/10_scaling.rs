//! Columns of different units: the model scales them, takes raw rows ever after, and shows its centroids in their units.

use std::error::Error;

use polars::prelude::*;
use polars_kmeans::{KMeans, Scale};

fn main() -> Result<(), Box<dyn Error>> {
    let people = df!(
        "age" => [24.0, 27.0, 61.0, 65.0, 23.0, 66.0],
        "income" => [51_000.0, 48_500.0, 50_500.0, 48_000.0, 49_500.0, 50_000.0],
    )?;
    let names = ["age", "income"];

    // One euro counts as much as one year, so the income decides alone.
    let raw: Vec<Option<u32>> = KMeans::new(2).fit(&people, names)?.predict(&people)?.iter().collect();
    assert_eq!(raw[0], raw[2], "young and old are together");

    // Scaled, both columns count alike. The centroids are in years and euros.
    let model = KMeans::new(2).scale(Scale::Standard).fit(&people, names)?;
    println!("{}", model.centroids()?);
    let scaling = model.scaling().ok_or("the model scales its rows")?;
    println!("factors: {:?}", scaling.factors());
    let labels: Vec<Option<u32>> = model.predict(&people)?.iter().collect();
    assert_eq!([labels[1], labels[4]], [labels[0]; 2], "the young");
    assert_eq!([labels[3], labels[5]], [labels[2]; 2], "the old");
    let ages = model.centroids()?.column("age")?.f64()?.iter().collect::<Vec<_>>();
    assert!(ages.iter().flatten().any(|age| (age - 64.0).abs() < 1e-9), "the mean age of the old");

    // Factors of your own: a year counts as much as a thousand euros.
    let given = KMeans::new(2).scale(Scale::Factors([("income".to_owned(), 1e-3)].into())).fit(&people, names)?;
    assert_eq!(given.predict(&people)?.iter().collect::<Vec<_>>(), labels);
    Ok(())
}
