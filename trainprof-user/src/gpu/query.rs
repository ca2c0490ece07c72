//! What a device is asked, and how often: by what an answer costs.

/// What can be asked of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    Gpm,
    /// The driver's own samples of utilisation, where it has no better.
    Utilisation,
    /// Likewise of power.
    Power,
    Memory,
    /// Clocks, and what holds them back.
    Clocks,
    /// Who has a context.
    Users,
    /// How much of it each of them uses.
    Shares,
    Temperature,
    Pcie,
    Ecc,
}

impl Query {
    /// In the order in which those that are due together are asked.
    pub const ALL: [Self; 10] = [
        Self::Gpm,
        Self::Utilisation,
        Self::Power,
        Self::Memory,
        Self::Clocks,
        Self::Shares,
        Self::Users,
        Self::Temperature,
        Self::Pcie,
        Self::Ecc,
    ];

    /// How often it is asked, in ms, by what an answer takes (driver 580, H200, CPU time): utilisation of processes 2.9 ms, samples of
    /// utilisation 2.9, of power 0.9, processes 0.5, GPM 0.4, throughput 1.1 (and 40 ms until it is there), everything else 0.1 to 0.3.
    /// GPM wants 100 ms between two.
    pub fn period_ms(self) -> u64 {
        match self {
            // Samples that the driver keeps are fetched once a second.
            Self::Gpm | Self::Utilisation | Self::Memory => 200,
            Self::Power | Self::Clocks | Self::Users | Self::Temperature => 1_000,
            Self::Shares => 3_000,
            Self::Pcie => 5_000,
            Self::Ecc => 10_000,
        }
    }

    /// Whether the driver may keep samples of it until they are fetched.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Utilisation | Self::Power)
    }

    /// How long after the beginning it is asked first, in ms: there is nothing to tell yet.
    pub fn begins_ms(self) -> u64 {
        match self {
            Self::Shares => 1_000,
            _ => 0,
        }
    }
}
