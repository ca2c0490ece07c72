fn main(){ println!("cargo:rustc-env=TRAINPROF_EBPF_OBJECT={}/ebpf/trainprof.bpfel.x86_64.o", std::env::var("CARGO_MANIFEST_DIR").unwrap()); println!("cargo:rerun-if-changed=ebpf"); }
