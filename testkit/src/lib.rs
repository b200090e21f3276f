//! Test support: fixtures and drivers that several crates' tests, the benchmarks and the fuzz targets share.
//!
//! Never a dependency of the program.

pub mod made_up;
