//! Labels within bounds on the sizes of clusters, from the definition: the three rules as one sum of big integers.

use num_bigint::BigInt;
use polars_kmeans::Float;
use polars_kmeans::exact::reference;

use super::{Facts, Start, Task, integer, learn};

/// The integers of the distances of each row to each centroid, in units of `2^unit`, no larger than 2^90.
fn costs<T: Float>(task: &Task<T>, facts: &Facts, centroids: &[Vec<T>], unit: i32) -> Vec<Vec<BigInt>> {
    let most = BigInt::from(1) << 90u32;
    let cost = |i: usize, c: &Vec<T>| integer(facts.weights[i], reference::distance(&task.rows[i], c), unit).min(most.clone());
    (0..task.rows.len()).map(|i| centroids.iter().map(|c| cost(i, c)).collect()).collect()
}

/// The labels of least sum for these costs, with a number of rows from `least` to `most` in each cluster. Rows join one by one,
/// along the cheapest path of moves (Bellman and Ford).
fn cheapest(costs: &[Vec<BigInt>], [least, most]: [usize; 2]) -> Vec<usize> {
    let k = costs[0].len();
    let bonus: BigInt = costs.iter().flatten().sum::<BigInt>() + 1;
    let (mut labels, mut sizes): (Vec<usize>, Vec<usize>) = (Vec::new(), vec![0; k]);
    for row in costs {
        // The cheapest way for a row of each cluster to go to each other cluster.
        let mut moves = vec![vec![None::<(BigInt, usize)>; k]; k];
        for (i, &a) in labels.iter().enumerate() {
            for b in (0..k).filter(|b| *b != a) {
                let change = &costs[i][b] - &costs[i][a];
                if moves[a][b].as_ref().is_none_or(|(other, _)| change < *other) {
                    moves[a][b] = Some((change, i));
                }
            }
        }
        let mut best: Vec<(BigInt, Option<(usize, usize)>)> = row.iter().map(|cost| (cost.clone(), None)).collect();
        for _ in 0..k {
            for a in 0..k {
                for b in 0..k {
                    if let Some((change, i)) = &moves[a][b]
                        && &best[a].0 + change < best[b].0
                    {
                        best[b] = (&best[a].0 + change, Some((a, *i)));
                    }
                }
            }
        }
        let last = |j: usize| if sizes[j] < least { &best[j].0 - &bonus } else { best[j].0.clone() };
        let mut at = (0..k).filter(|&j| sizes[j] < most).min_by_key(|&j| last(j)).expect("the bounds are feasible");
        sizes[at] += 1;
        while let Some((before, i)) = best[at].1 {
            labels[i] = at;
            at = before;
        }
        labels.push(at);
    }
    labels
}

fn nearest<T: Float>(x: &[T], centroids: &[Vec<T>]) -> usize {
    let all = centroids.iter().map(|c| reference::distance(x, c)).enumerate();
    all.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0
}

/// The labels of all rows by these centroids. Starting centroids of the task count in the scale of distances.
pub fn bounded<T: Float>(task: &Task<T>, centroids: &[Vec<T>], bounds: [usize; 2]) -> Vec<u32> {
    let facts = learn(&Task { start: Start::Given(centroids.to_vec()), ..task.clone() }).unwrap();
    within(task, &facts, centroids, bounds)
}

pub(super) fn within<T: Float>(task: &Task<T>, facts: &Facts, centroids: &[Vec<T>], [least, most]: [usize; 2]) -> Vec<u32> {
    let mut labels: Vec<u32> = task.rows.iter().map(|x| nearest(x, centroids) as u32).collect();
    let counted: Vec<usize> = (0..labels.len()).filter(|&i| facts.weights[i] > 0.0).collect();
    let size = |labels: &[u32], j: usize| counted.iter().filter(|&&i| labels[i] as usize == j).count();
    let (k, n, all) = (centroids.len(), counted.len(), task.rows.len());
    if (0..k).all(|j| (least..=most).contains(&size(&labels, j))) {
        return labels;
    }
    let chosen = precisely(task, facts, centroids, n, |costs| {
        // Rule 3 is a number whose digits are the labels, rule 2 counts more than all of it, and rule 1 more than both.
        let digits = BigInt::from(k).pow(n as u32);
        let numbers = BigInt::from(all * all * k);
        let combined = |(place, &i): (usize, &usize)| -> Vec<BigInt> {
            let cost = |j: usize| {
                let second = BigInt::from((all - i) * j) * &digits;
                &costs[i][j] * &numbers * &digits + second + BigInt::from(j) * BigInt::from(k).pow((n - 1 - place) as u32)
            };
            (0..k).map(cost).collect()
        };
        let chosen = cheapest(&counted.iter().enumerate().map(combined).collect::<Vec<_>>(), [least, most]);
        counted.iter().zip(chosen).map(|(&i, j)| (i, j)).collect()
    });
    chosen.into_iter().for_each(|(i, j)| labels[i] = j as u32);
    labels
}

/// Chooses the labels of some rows, `n` in all, by integer costs that are precise for their total: (row, label).
fn precisely<T: Float>(
    task: &Task<T>,
    facts: &Facts,
    centroids: &[Vec<T>],
    n: usize,
    mut choose: impl FnMut(&[Vec<BigInt>]) -> Vec<(usize, usize)>,
) -> Vec<(usize, usize)> {
    let mut unit = facts.base();
    loop {
        let costs = costs(task, facts, centroids, unit);
        let chosen = choose(&costs);
        let total: BigInt = chosen.iter().map(|&(i, j)| &costs[i][j]).sum();
        if total == BigInt::from(0) || total >= BigInt::from(n) << 41u32 {
            return chosen;
        }
        unit += (total + n).bits() as i32 - 90;
    }
}

/// The labels of all rows by two centroids, in closed form. Rows are sorted by cost 0 less cost 1, and equal ones by their numbers.
/// The first rows go to cluster 0, the others to cluster 1.
pub fn cut<T: Float>(task: &Task<T>, centroids: &[Vec<T>; 2], [least, most]: [usize; 2]) -> Vec<u32> {
    let facts = learn(&Task { start: Start::Given(centroids.to_vec()), ..task.clone() }).unwrap();
    let mut labels: Vec<u32> = task.rows.iter().map(|x| nearest(x, centroids) as u32).collect();
    let mut counted: Vec<usize> = (0..labels.len()).filter(|&i| facts.weights[i] > 0.0).collect();
    let n = counted.len();
    let ones = counted.iter().filter(|&&i| labels[i] == 1).count();
    if [ones, n - ones].iter().all(|size| (least..=most).contains(size)) {
        return labels;
    }
    let chosen = precisely(task, &facts, centroids, n, |costs| {
        counted.sort_by_key(|&i| (&costs[i][0] - &costs[i][1], i));
        let zeros = counted.iter().filter(|&&i| costs[i][0] <= costs[i][1]).count();
        let zeros = zeros.clamp(least.max(n.saturating_sub(most)), most.min(n - least));
        counted.iter().enumerate().map(|(place, &i)| (i, usize::from(place >= zeros))).collect()
    });
    chosen.into_iter().for_each(|(i, j)| labels[i] = j as u32);
    labels
}

/// Proves that labels are optimal by rules 1 and 2, or says what does not hold. There are prices for the clusters if no round of
/// moves lowers the sum: rows move between clusters, or take the ground where the bounds let a cluster grow or shrink.
pub fn proved<T: Float>(task: &Task<T>, centroids: &[Vec<T>], labels: &[u32], [least, most]: [usize; 2]) -> Result<(), String> {
    let facts = learn(&Task { start: Start::Given(centroids.to_vec()), ..task.clone() }).unwrap();
    let (k, all) = (centroids.len(), task.rows.len());
    let counted: Vec<usize> = (0..all).filter(|&i| facts.weights[i] > 0.0).collect();
    let size = |j: usize| counted.iter().filter(|&&i| labels[i] as usize == j).count();
    // Rule 2 is for labels that bounds have changed.
    let is_plain = labels.iter().zip(&task.rows).all(|(label, x)| *label as usize == nearest(x, centroids));
    if let Some(j) = (0..k).find(|&j| !(least..=most).contains(&size(j))) {
        return Err(format!("cluster {j} has {} rows", size(j)));
    }
    let mut unit = facts.base();
    loop {
        let costs = costs(task, &facts, centroids, unit);
        let second = |i: usize, j: usize| if is_plain { 0 } else { (all - i) as i128 * j as i128 };
        let cost = |i: usize, j: usize| (i128::try_from(&costs[i][j]).unwrap(), second(i, j));
        let total: BigInt = counted.iter().map(|&i| &costs[i][labels[i] as usize]).sum();
        if total > BigInt::from(0) && total < BigInt::from(counted.len()) << 41u32 {
            unit += (total + counted.len()).bits() as i32 - 90;
            continue;
        }
        const FAR: i128 = i128::MAX / 4;
        let mut arcs = vec![vec![(FAR, 0i128); k + 1]; k + 1];
        for &i in &counted {
            let own = labels[i] as usize;
            let here = cost(i, own);
            for j in (0..k).filter(|j| *j != own) {
                let there = cost(i, j);
                arcs[own][j] = arcs[own][j].min((there.0 - here.0, there.1 - here.1));
            }
        }
        for j in 0..k {
            if size(j) < most {
                arcs[j][k] = (0, 0);
            }
            if size(j) > least {
                arcs[k][j] = (0, 0);
            }
        }
        let mut prices = vec![(0i128, 0i128); k + 1];
        for round in 0..=k + 1 {
            let mut changed = false;
            for a in 0..=k {
                for b in 0..=k {
                    let reached = (prices[a].0 + arcs[a][b].0, prices[a].1 + arcs[a][b].1);
                    if arcs[a][b].0 < FAR && reached < prices[b] {
                        (prices[b], changed) = (reached, true);
                    }
                }
            }
            if !changed {
                return Ok(());
            }
            if round == k + 1 {
                return Err("a round of moves lowers the sum".into());
            }
        }
    }
}
