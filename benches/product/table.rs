//! One line per goal: median, 95th percentile, and whether the median keeps the goal.

pub struct Table {
    over: usize,
    rows: usize,
}

impl Table {
    pub fn start() -> Self {
        println!("| measure | goal | median | p95 | runs | |\n|---|---|---|---|---|---|");
        Self { over: 0, rows: 0 }
    }

    /// `goal` is the highest value that keeps it, in `unit`.
    pub fn row(&mut self, measure: &str, goal: f64, unit: &str, values: Vec<f64>) {
        let runs = values.len();
        let (median, high) = (quantile(values.clone(), 0.5), quantile(values, 0.95));
        let verdict = if median <= goal { "ok" } else { "over" };
        self.rows += 1;
        self.over += usize::from(median > goal);
        println!("| {measure} | <= {goal} {unit} | {median:.2} | {high:.2} | {runs} | {verdict} |");
    }

    pub fn finish(self) {
        println!("\n{} of {} goals kept", self.rows - self.over, self.rows);
    }
}

pub fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
}
