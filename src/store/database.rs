//! Opening, WAL, migrations by version, one writer thread.
