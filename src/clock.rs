//! Time: wall time for people, the boot id for identities. Limits use `std::time::Instant`, which is monotonic.

use chrono::{DateTime, Local};

/// Wall time in the local zone. For display and retention only, never for a limit.
pub fn now() -> DateTime<Local> {
    Local::now()
}

/// Names this start of the machine; process numbers mean nothing beyond it. Empty where the system has no such name.
pub fn boot_id() -> String {
    #[cfg(target_os = "linux")]
    {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned()).unwrap_or_default()
    }
    #[cfg(not(target_os = "linux"))]
    {
        String::new()
    }
}
