//! A graph of clusters: how many rows a price difference of one moves between each two, and what price changes move given rows.

use crate::base::error::Result;
use crate::base::memory;
use crate::simd::{InstructionSet, Task, Vector};

/// What errors call the memory of this file.
const WHAT: &str = "the graph of clusters of bounded size";
/// Up to SMALL clusters, Cholesky solves the system; up to DIRECT clusters, if damping is below EASY. Else conjugate gradients.
const SMALL: usize = 256;
const DIRECT: usize = 1_024;
const EASY: f64 = 0.1;
/// Rows that are decomposed together.
const ROWS: usize = 16;
/// Sums of a scalar product.
const SUMS: usize = 32;
/// Most iterations of conjugate gradients, and the residual that ends them, relative to the first one. It is small because blobs
/// with few rows between them make small residuals, and matter most.
const SOLVING: (u32, f64) = (300, 1e-7);

/// Weights of pairs of clusters, and their sums: a graph's Laplacian.
pub struct PriceGraph {
    /// Pairs (a, b), a < b, each once.
    edges: Vec<(u32, u32, f64)>,
    diagonal: Vec<f64>,
}

impl PriceGraph {
    /// The graph of k clusters. The weights of equal edges (a, b), a < b, are added up.
    pub fn new(mut rows: Vec<(u32, u32, f64)>, k: usize) -> Result<Self> {
        rows.sort_unstable_by_key(|(a, b, _)| (*a, *b));
        let mut edges = memory::with_room(rows.len(), WHAT)?;
        let mut diagonal = memory::zeroed::<f64>(k, WHAT)?;
        for equal in rows.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
            let ((a, b, _), weight) = (equal[0], equal.iter().map(|(.., weight)| weight).sum::<f64>());
            edges.push((a, b, weight));
            diagonal[a as usize] += weight;
            diagonal[b as usize] += weight;
        }
        Ok(Self { edges, diagonal })
    }

    /// The price changes of free clusters that move so many rows out of each. `damping` times the diagonal is added to the
    /// diagonal.
    pub fn solve(&self, rows: &[f64], is_free: impl Fn(usize) -> bool, damping: f64) -> Result<Vec<f64>> {
        let (k, diagonal) = (rows.len(), self.damped(damping)?);
        let rows = memory::collected((0..k).map(|j| if is_free(j) { rows[j] } else { 0.0 }), WHAT)?;
        if k <= SMALL || k <= DIRECT && damping < EASY {
            self.solve_directly(rows, is_free, &diagonal)
        } else {
            self.descend(rows, is_free, &diagonal)
        }
    }

    /// The diagonal with damping.
    fn damped(&self, damping: f64) -> Result<Vec<f64>> {
        let usual = self.diagonal.iter().sum::<f64>() / self.diagonal.len() as f64;
        // Damping also keeps the system regular where the prices of many clusters may move together.
        let damped = |entry: &f64| (1.0 + damping) * entry + 0.01 * damping * usual + f64::MIN_POSITIVE;
        memory::collected(self.diagonal.iter().map(damped), WHAT)
    }

    /// By Cholesky's factors.
    fn solve_directly(&self, mut x: Vec<f64>, is_free: impl Fn(usize) -> bool, diagonal: &[f64]) -> Result<Vec<f64>> {
        self.factor(is_free, diagonal)?.solve(&mut x);
        Ok(x)
    }

    /// Cholesky's factor. `is_free`, `diagonal`: of the system.
    fn factor(&self, is_free: impl Fn(usize) -> bool, diagonal: &[f64]) -> Result<Factor> {
        let k = diagonal.len();
        let mut lower = memory::zeroed::<f64>(k * k, WHAT)?;
        diagonal.iter().enumerate().for_each(|(j, entry)| lower[j * k + j] = *entry);
        for &(a, b, weight) in self.edges.iter().filter(|(a, b, _)| is_free(*a as usize) && is_free(*b as usize)) {
            lower[b as usize * k + a as usize] -= weight;
        }
        InstructionSet::detect().run(Decompose { lower: &mut lower, k });
        Ok(Factor { lower, k })
    }

    /// A factor of the system of [`PriceGraph::solve`], for several right sides. They are 0 where `is_free` is false.
    pub fn factored(&self, is_free: impl Fn(usize) -> bool, damping: f64) -> Result<Factor> {
        self.factor(is_free, &self.damped(damping)?)
    }

    /// By conjugate gradients, with Jacobi's preconditioner.
    fn descend(&self, mut rest: Vec<f64>, is_free: impl Fn(usize) -> bool, diagonal: &[f64]) -> Result<Vec<f64>> {
        let k = rest.len();
        let product = |x: &[f64], out: &mut [f64]| {
            out.iter_mut().zip(x).zip(diagonal).for_each(|((out, x), entry)| *out = entry * x);
            for &(a, b, weight) in &self.edges {
                out[a as usize] -= weight * x[b as usize];
                out[b as usize] -= weight * x[a as usize];
            }
            (0..k).filter(|&j| !is_free(j)).for_each(|j| out[j] = 0.0);
        };
        let mut x = memory::zeroed::<f64>(k, WHAT)?;
        let eased = |rest: &[f64]| memory::collected(rest.iter().zip(diagonal).map(|(r, d)| r / d), WHAT);
        let mut direction = eased(&rest)?;
        let mut image = memory::zeroed::<f64>(k, WHAT)?;
        let mut size = dot(&rest, &direction);
        let first = size;
        for _ in 0..SOLVING.0 {
            if size <= SOLVING.1 * SOLVING.1 * first || size <= 0.0 {
                break;
            }
            product(&direction, &mut image);
            let share = size / dot(&direction, &image);
            if !share.is_finite() {
                break;
            }
            x.iter_mut().zip(&direction).for_each(|(x, d)| *x += share * d);
            rest.iter_mut().zip(&image).for_each(|(r, i)| *r -= share * i);
            let next = eased(&rest)?;
            let now = dot(&rest, &next);
            direction.iter_mut().zip(&next).for_each(|(d, n)| *d = n + now / size * *d);
            size = now;
        }
        Ok(x)
    }
}

/// Cholesky's factor of a system.
pub struct Factor {
    /// `(k, k)`, row-major; only the lower triangle counts.
    lower: Vec<f64>,
    k: usize,
}

impl Factor {
    /// Replaces a right side by its solution.
    pub fn solve(&self, x: &mut [f64]) {
        let Self { lower, k } = self;
        for i in 0..*k {
            x[i] = (x[i] - dot(&lower[i * k..][..i], &x[..i])) / lower[i * k + i];
        }
        for i in (0..*k).rev() {
            x[i] /= lower[i * k + i];
            let (rest, last) = x.split_at_mut(i);
            rest.iter_mut().zip(&lower[i * k..]).for_each(|(x, entry)| *x -= entry * last[0]);
        }
    }
}

/// Replaces a matrix by its factor.
struct Decompose<'l> {
    lower: &'l mut [f64],
    k: usize,
}

impl Task for Decompose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Self { lower, k } = self;
        for first in (0..k).step_by(ROWS) {
            let (above, rows) = lower.split_at_mut(first * k);
            // Each row above is read once for all of these rows.
            for (j, of_j) in above.chunks_exact(k).enumerate() {
                for row in rows.chunks_exact_mut(k).take(ROWS) {
                    row[j] = (row[j] - dot(&row[..j], &of_j[..j])) / of_j[j];
                }
            }
            for i in first..(first + ROWS).min(k) {
                let (above, row) = rows.split_at_mut((i - first) * k);
                for (j, of_j) in (first..).zip(above.chunks_exact(k)) {
                    row[j] = (row[j] - dot(&row[..j], &of_j[..j])) / of_j[j];
                }
                row[i] = (row[i] - dot(&row[..i], &row[..i])).max(f64::MIN_POSITIVE).sqrt();
            }
        }
    }
}

/// A scalar product in many sums, so that no addition waits for the one before.
#[inline(always)]
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut sums, (of_a, of_b)) = ([0.0; SUMS], (a.chunks_exact(SUMS), b.chunks_exact(SUMS)));
    let rest: f64 = of_a.remainder().iter().zip(of_b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in of_a.zip(of_b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    rest + sums.iter().sum::<f64>()
}
