//! CPU bandwidth control (Documentation/scheduler/sched-bwc.rst, Documentation/admin-guide/cgroup-v2.rst).

use super::{
    groups::{Group, Version},
    text::number,
};
use crate::{
    env::{
        cgroup::{CpuQuota, decode_cpu_max, decode_quota},
        read_value,
    },
    record::fact::QuotaSample,
    time::KtimeNs,
};

/// How often a group was throttled since it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Throttled {
    periods: u64,
    throttled_periods: u64,
    ns: u64,
}

/// `None` for a group without a quota, or one that is gone.
pub(super) fn read(at: KtimeNs, group: &Group) -> Option<QuotaSample> {
    let file = |name: &str| read_value(group.dir.join(name));
    let quota = match group.version {
        Version::One => {
            // Most groups have no quota: then one read is enough.
            let quota = file("cpu.cfs_quota_us").filter(|text| text != "-1")?;
            decode_quota(&quota, &file("cpu.cfs_period_us")?)
        }
        Version::Two => decode_cpu_max(&file("cpu.max")?),
    }?;
    sample(at, group, quota, decode(group.version, &file("cpu.stat")?)?)
}

fn sample(
    at: KtimeNs,
    group: &Group,
    quota: CpuQuota,
    throttled: Throttled,
) -> Option<QuotaSample> {
    (quota.quota_us > 0).then(|| QuotaSample {
        at,
        cgroup: group.path.clone(),
        quota_us: quota.quota_us,
        period_us: quota.period_us,
        periods: throttled.periods,
        throttled_periods: throttled.throttled_periods,
        throttled_ns: throttled.ns,
    })
}

/// Decodes cpu.stat. Version 1 counts nanoseconds, version 2 microseconds.
fn decode(version: Version, stat: &str) -> Option<Throttled> {
    Some(Throttled {
        periods: number(stat, "nr_periods")?,
        throttled_periods: number(stat, "nr_throttled")?,
        ns: match version {
            Version::One => number(stat, "throttled_time")?,
            Version::Two => number(stat, "throttled_usec")?.checked_mul(1_000)?,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const V1: &str = "nr_periods 2033\nnr_throttled 1975\nthrottled_time 159820413211\nnr_bursts 0\nburst_time 0\n";
    const V2: &str = "usage_usec 5020\nuser_usec 3000\nsystem_usec 2020\nnr_periods 20\nnr_throttled 3\nthrottled_usec 9000\nnr_bursts 0\nburst_usec 0\n";

    #[test]
    fn both_versions_in_nanoseconds() {
        let throttled = |periods, throttled_periods, ns| Throttled {
            periods,
            throttled_periods,
            ns,
        };
        assert_eq!(
            decode(Version::One, V1),
            Some(throttled(2033, 1975, 159_820_413_211))
        );
        assert_eq!(decode(Version::Two, V2), Some(throttled(20, 3, 9_000_000)));
        assert_eq!(decode(Version::Two, V1), None);
        // Without the controller, version 2 has only the first three lines.
        assert_eq!(decode(Version::Two, "usage_usec 5\nuser_usec 3\n"), None);
        assert_eq!(
            decode(
                Version::Two,
                "nr_periods 1\nnr_throttled 1\nthrottled_usec 18446744073709551615"
            ),
            None
        );
    }

    #[test]
    fn only_groups_with_a_quota_are_sampled() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = |version| Group {
            path: "/job".into(),
            dir: dir.path().to_owned(),
            version,
        };
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("a file");
        put("cpu.stat", &format!("{V1}throttled_usec 7\n"));
        for (quota, max, expected) in [
            ("-1\n", "max 100000\n", None),
            ("20000\n", "20000 100000\n", Some((20_000, 100_000))),
            ("0\n", "0 100000\n", None),
            ("", "", None),
        ] {
            put("cpu.cfs_quota_us", quota);
            put("cpu.cfs_period_us", "100000\n");
            put("cpu.max", max);
            for version in [Version::One, Version::Two] {
                let found = read(KtimeNs(5), &group(version));
                assert_eq!(
                    found.as_ref().map(|s| (s.quota_us, s.period_us)),
                    expected,
                    "{quota:?} {version:?}"
                );
                assert!(found.is_none_or(|s| s.cgroup == "/job" && s.throttled_periods == 1975));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decoded_or_refused(text in "((nr_periods|nr_throttled|throttled_usec|throttled_time) [0-9]{0,25}\\n|.*)*") {
            let _ = (decode(Version::One, &text), decode(Version::Two, &text));
        }
    }
}
