//! Where libfirstdiff_trace lies, from pkg-config.
use std::process::Command;

fn main() {
    let out = Command::new("pkg-config").args(["--libs-only-L", "firstdiff_trace"]).output().expect("pkg-config");
    assert!(out.status.success(), "pkg-config: {}", String::from_utf8_lossy(&out.stderr));
    for dir in String::from_utf8_lossy(&out.stdout).split_whitespace() {
        println!("cargo:rustc-link-search=native={}", dir.trim_start_matches("-L"));
    }
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
}
