use polars_kmeans::*;
#[test]
fn smoke() {
    let n = 4_194_304; let d = 4; let k = 4;
    let mut cols = vec![vec![0f32; n]; d];
    let mut st = 12345u64;
    let mut rnd = || { st = st.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (st >> 40) as f32 / (1u64 << 24) as f32 };
    for i in 0..n { let b = (rnd() * 10.0) as usize; for f in 0..d { cols[f][i] = ((b * 37 + f * 11) % 100) as f32 + 10.0 * (rnd() + rnd() + rnd() - 1.5); } }
    let init: Vec<f64> = (0..k).flat_map(|j| (0..d).map(|f| cols[f][j * 1000] as f64).collect::<Vec<_>>()).collect();
    let f = Features::from_columns(cols.iter().map(|c| &c[..])).unwrap();
    for threads in [1, 2] {
        let t = std::time::Instant::now();
        let r = KMeans::new(k).init(Init::Given(init.clone())).max_iter(10).tol(0.0).threads(threads).fit_features(&f, None).unwrap();
        println!("{threads} {:?} {} {:?}", t.elapsed(), r.model.inertia(), r.model.history().iter().map(|h| (h.changed, (h.seconds*1e4).round()/10.0)).collect::<Vec<_>>());
        assert_eq!(r.model.predict(&f).unwrap().into_iter().map(|l| l.unwrap()).collect::<Vec<_>>(), r.labels);
    }
}
