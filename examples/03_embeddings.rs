//! Vectors: one Array column of a frame, or the rows of a slice.

use std::error::Error;

use polars::prelude::*;
use polars_kmeans::{Features, KMeans, Restarts};

/// The number of values in an embedding.
const WIDTH: usize = 64;
/// The number of topics, and the number of embeddings per topic.
const TOPICS: usize = 5;
const EACH: usize = 200;

/// A number from -1 to 1. A linear congruential generator is good enough for an example.
fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn main() -> Result<(), Box<dyn Error>> {
    // Embeddings lie around the place of their topic. The values are row-major, as embedding models give them.
    let mut state = 1;
    let places: Vec<f32> = (0..TOPICS * WIDTH).map(|_| noise(&mut state)).collect();
    let topic_of = |row: usize| row % TOPICS;
    let values: Vec<f32> = (0..TOPICS * EACH)
        .flat_map(|row| &places[topic_of(row) * WIDTH..][..WIDTH])
        .map(|place| place + noise(&mut state))
        .collect();

    // Without a frame, the slice itself is clustered and not copied. Of ten starts, the fit with the least inertia is kept.
    let kmeans = KMeans::new(TOPICS).n_init(Restarts::Count(10));
    let fitted = kmeans.fit_features(&Features::from_rows(&values, WIDTH)?, None)?;
    println!("sizes {:?}, inertia {:.1}", fitted.model.sizes(), fitted.model.inertia());

    // It found the topics: two rows have the same label exactly if they have the same topic.
    for (row, label) in fitted.labels.iter().enumerate() {
        assert_eq!(*label, fitted.labels[topic_of(row)]);
    }
    assert_eq!(fitted.model.sizes(), [EACH as u64; TOPICS]);

    // The same values as an Array column of a frame.
    let shape = [ReshapeDimension::new_dimension((TOPICS * EACH) as u64), ReshapeDimension::new_dimension(WIDTH as u64)];
    let column = Series::new("embedding".into(), &values).reshape_array(&shape)?;
    let df = DataFrame::new(TOPICS * EACH, vec![column.into_column()])?;
    let model = kmeans.fit(&df, ["embedding"])?;

    // The same values give the same bits. The centroids come as an Array column too.
    assert_eq!(model.inertia(), fitted.model.inertia());
    let centroids = model.centroids()?;
    assert_eq!(centroids.column("embedding")?.dtype(), df.column("embedding")?.dtype());
    println!("{centroids}");

    // The distances of every row to every centroid: an Array column of TOPICS values.
    let distances = model.transform(&df, false)?;
    println!("{}", distances.head(Some(3)));
    assert_eq!(distances.dtype(), &DataType::Array(Box::new(DataType::Float64), TOPICS));
    Ok(())
}
