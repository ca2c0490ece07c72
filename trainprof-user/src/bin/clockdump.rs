//! debug only
use std::collections::BTreeMap;
use trainprof_user::{analysis::{facts::Facts, analyse}, record::{Record, reader::Reader}, session::Session};
use trainprof_common::op::{Op, Class};
fn json(path: &str) {
    let mut reader = Reader::open(path).unwrap();
    let mut session = Session::default();
    while let Some(r) = reader.next_record::<Record>().unwrap() { session.apply(&r); }
    let facts = Facts::new(&session);
    let a = analyse(&session);
    let Some(t) = &a.trainer else { return };
    let mut threads = serde_json::Map::new();
    for th in session.threads.values().filter(|x| x.pid == t.cast.trainer) {
        let tid = th.key.tid;
        let touches: Vec<_> = facts.touches(tid).iter().map(|x| (x.at.0, x.op, x.object.class, x.object.fileset, x.object.id, x.bytes, x.skipped)).collect();
        let waits: Vec<_> = facts.items(tid).iter().map(|x| (x.from, x.woken, x.to, x.nr, x.object.class, x.object.id, x.waker.kind, x.waker.tid, x.asked_again)).collect();
        let samples: Vec<_> = facts.samples(tid).iter().map(|s| { let p = session.places.get(&s.place); (s.at.0, s.nr, p.map(|p| format!("{:?}", p.class)), p.and_then(|p| p.module.clone()), p.and_then(|p| p.function.clone())) }).collect();
        threads.insert(tid.to_string(), serde_json::json!({"touches": touches, "waits": waits, "samples": samples, "run_ns": th.run_ns}));
    }
    println!("{}", serde_json::json!({"step_tid": t.cast.step_tid, "trainer": t.cast.trainer, "loaders": t.cast.loader_threads, "workers": t.cast.workers, "spans": facts.spans, "threads": threads,
        "others": session.threads.values().filter(|x| t.cast.producers.contains(&x.key.tid)).map(|th| (th.key.tid, facts.items(th.key.tid).iter().map(|x| (x.from, x.woken, x.to, x.nr, x.object.class, x.object.id, x.waker.kind, x.waker.tid, x.asked_again)).collect::<Vec<_>>())).collect::<Vec<_>>(),
    }));
}
fn main() {
    if std::env::args().nth(1).as_deref() == Some("--json") { return json(&std::env::args().nth(2).unwrap()); }
    for path in std::env::args().skip(1) {
        let mut reader = Reader::open(&path).unwrap();
        let mut session = Session::default();
        while let Some(r) = reader.next_record::<Record>().unwrap() { session.apply(&r); }
        let facts = Facts::new(&session);
        let a = analyse(&session);
        println!("== {path}");
        let Some(t) = &a.trainer else { println!("no trainer"); continue };
        println!("trainer {} step {} loaders {:?} workers {:?} ranks {:?}", t.cast.trainer, t.cast.step_tid, t.cast.loader_threads, t.cast.workers, t.cast.ranks);
        println!("steps {:?}", t.steps.as_ref().map(|s| (s.clock, s.spans.len(), s.quantile_ns(0.5) as f64/1e6, s.quantile_ns(0.95) as f64/1e6, s.confidence)));
        println!("terms {:?}", t.terms);
        println!("demand {:?}", t.demand);
        println!("bykind {:?}", t.by_kind().iter().map(|(k,v)| (k.name(), v/t.wall)).collect::<Vec<_>>());
        let mut sh: Vec<_> = t.shares.iter().filter(|x| x.ns > 0.01*t.wall).collect();
        sh.sort_by(|a,b| b.ns.total_cmp(&a.ns));
        for x in sh.iter().take(14) { println!("  share {:.3} {} stall {} {:?}", x.ns/t.wall, x.kind.name(), x.in_stall, t.walked.leaves[x.leaf as usize].0); }
        println!("  locks {:?}", a.locks.values().map(|l| (l.id, l.threads.len(), l.waited_ns as f64/1e9, l.hand_overs, l.asks_again)).collect::<Vec<_>>());
        for k in t.by_kind().keys() { println!("  bound {} {:.2}", k.name(), t.bound(*k)); }
        println!("verdict {:?}", a.verdict.as_ref().map(|v| (v.bottleneck, v.share, v.speedup_bound, v.confidence)));
        let mut tids: Vec<u32> = session.threads.values().filter(|x| x.pid == t.cast.trainer).map(|x| x.key.tid).collect();
        tids.sort();
        for tid in tids {
            let mut groups: BTreeMap<(u8,u8,u64), Vec<(u64,u64,u32)>> = BTreeMap::new();
            for x in facts.touches(tid) { groups.entry((x.op, x.object.class, if x.object.fileset!=0 {x.object.fileset as u64} else {x.object.id})).or_default().push((x.at.0, x.bytes, x.skipped)); }
            let mut waits: BTreeMap<String, Vec<(u64,u64)>> = BTreeMap::new();
            for i in facts.items(tid) { waits.entry(format!("nr {} cls {} id {:x} wk {}:{}", i.nr, i.object.class, i.object.id, i.waker.kind, i.waker.tid)).or_default().push((i.from, i.to-i.from)); }
            let th = session.thread(tid).unwrap();
            println!(" thread {tid} run {:.2}s samples {} touches {}", th.run_ns as f64/1e9, facts.samples(tid).len(), facts.touches(tid).len());
            for ((op,class,id), v) in &groups {
                if v.len()<3 {continue}
                let mut g: Vec<u64> = v.windows(2).map(|p| p[1].0-p[0].0).collect(); g.sort();
                let q=|f:f64| g[((g.len()-1) as f64*f) as usize] as f64/1e6;
                println!("   touch {:?}/{:?} {id:x}: n {} gap p5 {:.3} p25 {:.3} p50 {:.3} p75 {:.3} p95 {:.3} bytes {} skipped {}", Op::try_from(*op).ok(), Class::try_from(*class).ok(), v.len(), q(0.05),q(0.25),q(0.5),q(0.75),q(0.95), v[v.len()/2].1, v.iter().map(|x| x.2 as u64).sum::<u64>());
            }
            for (k, v) in &waits {
                if v.len()<3 {continue}
                let mut g: Vec<u64> = v.windows(2).map(|p| p[1].0-p[0].0).collect(); g.sort();
                let q=|f:f64| g[((g.len()-1) as f64*f) as usize] as f64/1e6;
                println!("   wait {k}: n {} gap p5 {:.3} p50 {:.3} p95 {:.3} total {:.3}s", v.len(), q(0.05),q(0.5),q(0.95), v.iter().map(|x| x.1).sum::<u64>() as f64/1e9);
            }
            let mut sums: BTreeMap<String,(u64,u64)> = BTreeMap::new();
            for (id, tot) in &th.waits { let e=sums.entry(format!("nr {} cls {} id {:x} wk {}:{}", id.nr,id.object.class,id.object.id,id.waker.kind,id.waker.tid)).or_default(); e.0+=tot.count; e.1+=tot.wait_ns; }
            for (k,(n,ns)) in &sums { if *n>=10 { println!("   sum {k}: n {n} {:.3}s", *ns as f64/1e9); } }
            let mut places: BTreeMap<String,u64> = BTreeMap::new();
            for s in facts.samples(tid) { let p=session.places.get(&s.place); *places.entry(format!("{:?} {:?} {:?} nr{}", p.map(|p| p.class), p.and_then(|p| p.module.clone()), p.and_then(|p| p.function.clone()), s.nr)).or_default()+=1; }
            let mut pl: Vec<_> = places.into_iter().collect(); pl.sort_by_key(|x| std::cmp::Reverse(x.1));
            for (k,n) in pl.iter().take(12) { println!("   sample {n} {k}"); }
        }
    }
}
