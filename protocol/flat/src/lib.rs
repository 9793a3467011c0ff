//! FlatBuffers schemas of what the cluster replicates about itself, and the only safe way to read and write them.
//!
//! Owns the records' bytes. The generated code (which holds `unsafe`) stays private; everything is verified on read, so damaged or
//! hostile bytes are an error and never more. It never decides what a record means.

pub mod metadata;

/// Output of `generate.sh`. Lints are off here and nowhere else.
#[rustfmt::skip]
#[allow(warnings, clippy::all, rustdoc::all)]
mod generated {
    pub(crate) mod metadata;
}
