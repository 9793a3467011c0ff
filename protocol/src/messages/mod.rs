//! One module per API, generated from `protocol/schema`.
