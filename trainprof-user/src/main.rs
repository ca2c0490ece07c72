fn main() {
    let t = std::time::Instant::now();
    match trainprof_user::kernel::Probes::attach(Default::default()) {
        Ok(p) => println!("ok {:?} {:?}", t.elapsed(), p.skipped),
        Err(e) => {let mut s: Option<&dyn std::error::Error> = Some(&e); while let Some(x)=s { let t=x.to_string(); println!("{}", &t[t.len().saturating_sub(3000)..]); s=x.source(); }}
    }
}
