//! The centre that filters subtract from rows and centroids. It never affects a bit of a result, only how often a filter is in
//! doubt.

use crate::base::error::Result;
use crate::base::float::Float;
use crate::base::memory;

/// The median of each feature over at most this many centroids is the centre.
const MOST: usize = 63;

/// A point amid most of the centroids (`(k, d)`, row-major): the median, feature by feature. The mean would leave them where a
/// few rows are far out; then the errors of all scores would be large.
pub fn middle<T: Float>(centroids: &[T], d: usize) -> Result<Vec<f64>> {
    let k = centroids.len() / d;
    let step = k.div_ceil(MOST);
    let mut values = [0.0; MOST];
    let medians = (0..d).map(|f| {
        let count = (0..k).step_by(step).zip(&mut values).map(|(j, value)| *value = centroids[j * d + f].to_f64()).count();
        *values[..count].select_nth_unstable_by(count / 2, f64::total_cmp).1
    });
    memory::collected(medians, "the middle of the centroids")
}

#[cfg(feature = "tests")]
mod tests {
    use super::*;

    unit_test!(the_centre_is_where_most_centroids_are);
    fn the_centre_is_where_most_centroids_are() {
        let far = [1.0f32, 10.0, 2.0, 30.0, 1e9, 20.0];
        assert_eq!(middle(&far, 2).unwrap(), [2.0, 20.0]);
        assert_eq!(middle(&far[..2], 1).unwrap(), [10.0]);
        assert_eq!(middle(&far[..2], 2).unwrap(), [1.0, 10.0]);
        let many: Vec<f32> = (0..1_000).map(|j| j as f32).collect();
        assert_eq!(middle(&many, 1).unwrap(), [496.0]);
    }
}
