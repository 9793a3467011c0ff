//! Tells the program what built it: the compiler and the target, which `ringlog version --verbose` prints.

use std::process::Command;

fn main() {
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(compiler).arg("--version").output();
    let version = version.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo:rustc-env=BUILD_RUSTC_VERSION={}", version.as_deref().unwrap_or("unknown").trim());
    println!("cargo:rustc-env=BUILD_TARGET={}", variable("TARGET"));
    println!("cargo:rustc-env=BUILD_PROFILE={}", variable("PROFILE"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=BUILD_GIT_REVISION");
}
