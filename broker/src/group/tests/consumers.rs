//! Consumer groups of KIP-848 as their members see them.

mod converting;
mod failing;
mod joining;
mod operators;
mod regexes;
mod statics;
mod support;
mod timeline;
