//! What this kernel can do and what the operator allows: probed once, printed in the banner, never guessed from a version
//! where a probe exists.

use std::fmt;

use crate::operation::FileOperation;

/// A kernel feature that changes how a driver works. Each has a fallback; all are optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// `cachestat(2)`, Linux 6.5: tells which bytes of a file are in the page cache.
    Cachestat,
    /// `RWF_DONTCACHE`, Linux 6.14: reads that leave nothing behind in the page cache.
    DontCache,
    /// `IORING_ENTER_NO_IOWAIT`, Linux 6.15: sleeping in the ring is not counted as waiting for a disk.
    NoIowait,
    /// Provided buffer rings, Linux 5.19: an idle socket pins no memory.
    ProvidedBuffers,
    /// `O_DIRECT`: writes past the page cache, where the file system has it.
    Direct,
}

impl Feature {
    /// All of them, in the order of the banner.
    pub const ALL: [Self; 5] =
        [Self::Cachestat, Self::DontCache, Self::NoIowait, Self::ProvidedBuffers, Self::Direct];

    /// The name in `--io-features` and in the banner.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cachestat => "cachestat",
            Self::DontCache => "dontcache",
            Self::NoIowait => "no_iowait",
            Self::ProvidedBuffers => "provided_buffers",
            Self::Direct => "direct",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// Why `--io-features` was not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// A name that does not exist.
    #[error("unknown io feature `{name}`{}; known are {known}", suggestion.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default())]
    Unknown {
        /// The name as written.
        name: String,
        /// The nearest known name.
        suggestion: Option<&'static str>,
        /// All names.
        known: String,
    },
    /// Neither `+name` nor `-name`.
    #[error("io feature `{part}` needs a sign: `-{part}` switches it off, `+{part}` demands it")]
    NoSign {
        /// The part as written.
        part: String,
    },
}

/// What the operator says about features: `-cachestat,+no_iowait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSwitches {
    off: u32,
    demanded: u32,
}

impl FeatureSwitches {
    /// Parses `-name` (off) and `+name` (demanded: logged when the kernel lacks it), separated by commas. The last word
    /// about a feature holds.
    pub fn parse(text: &str) -> Result<Self, FeatureError> {
        let mut switches = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if let Some(name) = part.strip_prefix('-') {
                let bit = find(name)?.bit();
                switches.off |= bit;
                switches.demanded &= !bit;
            } else if let Some(name) = part.strip_prefix('+') {
                let bit = find(name)?.bit();
                switches.demanded |= bit;
                switches.off &= !bit;
            } else {
                find(part)?;
                return Err(FeatureError::NoSign { part: part.to_owned() });
            }
        }
        Ok(switches)
    }

    /// The same with `feature` switched off.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> Self {
        self.off |= feature.bit();
        self.demanded &= !feature.bit();
        self
    }

    /// The same without demands, for a look before the probe is complete.
    pub(crate) fn quiet(self) -> Self {
        Self { demanded: 0, ..self }
    }

    /// Every feature off: what the oldest supported kernel has.
    pub fn oldest() -> Self {
        Feature::ALL.into_iter().fold(Self::default(), Self::without)
    }
}

fn find(name: &str) -> Result<Feature, FeatureError> {
    let name = name.trim();
    if let Some(feature) = Feature::ALL.into_iter().find(|feature| feature.name() == name) {
        return Ok(feature);
    }
    let nearest =
        Feature::ALL.into_iter().map(|feature| (distance(name, feature.name()), feature.name())).min();
    Err(FeatureError::Unknown {
        name: name.to_owned(),
        suggestion: nearest.filter(|(distance, _)| *distance <= 3).map(|(_, name)| name),
        known: Feature::ALL.map(Feature::name).join(", "),
    })
}

/// Levenshtein distance in bytes, over two short names.
fn distance(left: &str, right: &str) -> usize {
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (row, left_byte) in left.bytes().enumerate() {
        let mut diagonal = row;
        let mut before = row + 1;
        for (column, right_byte) in right.bytes().enumerate() {
            let above = previous[column + 1];
            let value = (diagonal + usize::from(left_byte != right_byte)).min(above + 1).min(before + 1);
            previous[column] = before;
            diagonal = above;
            before = value;
        }
        previous[right.len()] = before;
    }
    previous[right.len()]
}

/// The features in use by a driver: available and not switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureSet {
    available: u32,
    on: u32,
}

impl FeatureSet {
    /// Nothing available: what the simulation has.
    pub const NONE: Self = Self { available: 0, on: 0 };

    /// Whether the driver uses `feature`.
    pub fn has(self, feature: Feature) -> bool {
        self.on & feature.bit() != 0
    }

    pub(crate) fn new(available: &[Feature], switches: FeatureSwitches) -> Self {
        let available = available.iter().fold(0, |bits, feature| bits | feature.bit());
        let missing = switches.demanded & !available;
        for feature in Feature::ALL.into_iter().filter(|feature| missing & feature.bit() != 0) {
            tracing::warn!(
                feature = feature.name(),
                "io feature demanded but this kernel or driver lacks it"
            );
        }
        Self { available, on: available & !switches.off }
    }
}

impl fmt::Display for FeatureSet {
    /// `cachestat dontcache -direct !no_iowait`: in use, switched off (`-`), not available (`!`).
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, feature) in Feature::ALL.into_iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            let sign = match (self.available & feature.bit() != 0, self.has(feature)) {
                (_, true) => "",
                (true, false) => "-",
                (false, false) => "!",
            };
            write!(formatter, "{separator}{sign}{}", feature.name())?;
        }
        Ok(())
    }
}

/// What any driver can use here, whether or not there is a ring.
pub(crate) fn probe_common() -> Vec<Feature> {
    let mut available = vec![Feature::Direct];
    if has_cachestat() {
        available.push(Feature::Cachestat);
    }
    if kernel_release() >= (6, 14) {
        available.push(Feature::DontCache);
    }
    available
}

/// The same operation without what is switched off.
pub(crate) fn without_direct(operation: FileOperation, features: FeatureSet) -> FileOperation {
    match operation {
        FileOperation::Open { path, mut options } => {
            options.direct &= features.has(Feature::Direct);
            FileOperation::Open { path, options }
        }
        other => other,
    }
}

/// cachestat(2) on no descriptor answers EBADF where it exists, ENOSYS or EPERM where it does not.
fn has_cachestat() -> bool {
    crate::file::cachestat_raw(-1, 0, 1).is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
}

/// (major, minor) of the running kernel; (0, 0) when its name is not understood.
pub(crate) fn kernel_release() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_parsed_and_the_last_word_holds() {
        let switches = FeatureSwitches::parse("-cachestat, +no_iowait").expect("valid");
        let set = FeatureSet::new(&[Feature::Cachestat, Feature::Direct], switches);
        assert!(!set.has(Feature::Cachestat));
        assert!(set.has(Feature::Direct));
        assert!(!set.has(Feature::NoIowait));
        assert_eq!(set.to_string(), "-cachestat !dontcache !no_iowait !provided_buffers direct");
        assert_eq!(FeatureSwitches::parse("-direct,+direct").expect("valid").off, 0);
        assert_eq!(FeatureSwitches::parse(""), Ok(FeatureSwitches::default()));
        assert_eq!(FeatureSet::new(&Feature::ALL, FeatureSwitches::oldest()).on, 0);
    }

    #[test]
    fn mistakes_get_a_suggestion() {
        let error = FeatureSwitches::parse("-cachestats").expect_err("unknown");
        assert!(error.to_string().contains("did you mean `cachestat`?"), "{error}");
        let error = FeatureSwitches::parse("+zzzzzzzzzzzz").expect_err("unknown");
        assert!(!error.to_string().contains("did you mean"), "{error}");
        assert!(error.to_string().contains("provided_buffers"), "{error}");
        let error = FeatureSwitches::parse("direct").expect_err("no sign");
        assert_eq!(error, FeatureError::NoSign { part: "direct".into() });
    }

    #[test]
    fn edit_distance_counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn the_running_kernel_has_a_release() {
        assert!(kernel_release() > (4, 0));
    }
}
