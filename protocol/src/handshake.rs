//! The rules of `ApiVersions` that break real clients when missed.
