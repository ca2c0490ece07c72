use std::collections::BTreeMap;
use trainprof_user::{
    analysis::facts::Facts,
    record::{fact::GpuMetric, Reader, Record},
    session::Session,
};
fn q(v: &mut Vec<f64>, s: f64) -> f64 {
    v.sort_by(f64::total_cmp);
    v.get(((v.len() as f64) * s) as usize).copied().unwrap_or(0.0)
}
fn main() {
    let mut args = std::env::args().skip(1);
    let mut reader = Reader::open(std::path::Path::new(&args.next().unwrap())).unwrap();
    let tid: u32 = args.next().unwrap().parse().unwrap();
    let mut session = Session::default();
    while let Some(record) = reader.next_record::<Record>().unwrap() {
        session.apply(&record);
    }
    let facts = Facts::new(&session);
    let mut by = BTreeMap::<String, (usize, Vec<f64>, Vec<f64>, u64)>::new();
    for i in facts.items(tid) {
        let e = by.entry(format!("{:?} nr {} obj {:x}/{} waker {}:{}", i.kind(), i.nr, i.object.id, i.object.class, i.waker.kind, i.waker.tid)).or_default();
        e.0 += 1;
        e.1.push((i.woken - i.from) as f64 / 1e6);
        if e.3 > 0 { e.2.push((i.from - e.3) as f64 / 1e6); }
        e.3 = i.from;
    }
    let mut v: Vec<_> = by.into_iter().collect();
    v.sort_by_key(|x| std::cmp::Reverse(x.1.0));
    for (k, mut e) in v.into_iter().take(12) {
        println!("{:6} {} wait p50 {:.3} gap p5 {:.3} p50 {:.3} p95 {:.3}", e.0, k, q(&mut e.1, 0.5), q(&mut e.2, 0.05), q(&mut e.2, 0.5), q(&mut e.2, 0.95));
    }
    let mut by = BTreeMap::<String, (usize, Vec<f64>, u64)>::new();
    for c in facts.calls(tid) {
        let e = by.entry(format!("{:?}", c.kind)).or_default();
        e.0 += 1; if e.2 > 0 { e.1.push((c.from - e.2) as f64 / 1e6); } e.2 = c.from;
    }
    let mut v: Vec<_> = by.into_iter().collect();
    v.sort_by_key(|x| std::cmp::Reverse(x.1.0));
    for (k, mut e) in v.into_iter().take(12) {
        println!("  call {} n {} gap p5 {:.3} p50 {:.3} p95 {:.3}", k, e.0, q(&mut e.1, 0.05), q(&mut e.1, 0.5), q(&mut e.1, 0.95));
    }
    for ((d, m), s) in &session.gpu.samples {
        if matches!(m, GpuMetric::Utilisation | GpuMetric::SmActivity) {
            println!("  {d} {m:?} n {} span {:?} values {:?}", s.len(), s.iter().map(|x| x.span_ns / 1_000_000).take(4).collect::<Vec<_>>(), s.iter().map(|x| (x.value * 100.0).round() / 100.0).take(24).collect::<Vec<_>>());
        }
    }
}
