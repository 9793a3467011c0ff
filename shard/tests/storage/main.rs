//! Tests of the storage and of what serves from it, in one binary: each of them alone takes a second to compile and link. Those that
//! a planted bug is looked for with have binaries of their own, beside this folder.

#[path = "../storage_support/mod.rs"]
mod storage_support;

mod begin_anew;
mod behind_damage;
mod compaction;
mod damage;
mod damage_kept;
mod descriptors;
mod directory;
mod egress;
mod file_system;
mod log_start;
mod no_descriptor;
mod read_errors;
mod read_plans;
mod recovery;
mod replica_answers;
mod rewrite;
mod space;
mod store_compaction;
mod store_retention;
mod truncate;
mod truncate_start;
mod visit;
