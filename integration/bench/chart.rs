//! One plot: lines with markers on axes that may be logarithmic, and bars from the minimum to the maximum.

use crate::book::Spread;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;

const SIZE: (u32, u32) = (760, 440);
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Colours that colour-blind readers can distinguish: tidegate in blue, peers in red.
pub const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
pub const SKY: RGBColor = RGBColor(0x56, 0xb4, 0xe9);
pub const RED: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
pub const ORANGE: RGBColor = RGBColor(0xe6, 0x9f, 0x00);

/// Title of an axis, with its unit.
#[derive(Clone, Copy)]
pub struct Axis {
    pub title: &'static str,
    pub log: bool,
}

/// One line, in the order of the horizontal axis.
pub struct Line {
    pub name: &'static str,
    pub colour: RGBColor,
    pub points: Vec<(f64, Spread)>,
}

/// One plot.
pub struct Chart {
    /// File name without extension.
    pub file: &'static str,
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub lines: Vec<Line>,
}

impl Chart {
    /// Writes it as SVG on a white background, because the page around it may be dark.
    pub fn draw(&self, file: &Path) -> Result<(), String> {
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        self.draw_on(&root).and_then(|()| root.present().map_err(|e| e.to_string()))
    }

    fn draw_on(&self, root: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String> {
        root.fill(&WHITE).map_err(|e| e.to_string())?;
        let (head, body) = root.split_vertically(66);
        self.head(&head)?;
        let places = self.lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
        let spreads = self.lines.iter().flat_map(|line| &line.points);
        let heights = spreads.flat_map(|(_, s)| [s.low, s.median, s.high]);
        let x = Scale::around(places.collect(), self.x.log, false);
        let y = Scale::around(heights.collect(), self.y.log, true);
        let floor = y.range.start;
        let mut chart = ChartBuilder::on(&body)
            .margin_top(8)
            .margin_left(10)
            .margin_right(24)
            .margin_bottom(6)
            .x_label_area_size(46)
            .y_label_area_size(74)
            .build_cartesian_2d(x, y)
            .map_err(|e| e.to_string())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(INK)
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .axis_desc_style((FONT, 15).into_font().color(&INK))
            .label_style((FONT, 13).into_font().color(&INK))
            .draw()
            .map_err(|e| e.to_string())?;
        for line in &self.lines {
            let colour = line.colour;
            let at = |y: f64| y.max(floor);
            let medians = line.points.iter().map(|(x, spread)| (*x, at(spread.median)));
            let drawn = chart.draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)));
            drawn.map_err(|e| e.to_string())?;
            let bars = line.points.iter().map(|(x, spread)| {
                PathElement::new(vec![(*x, at(spread.low)), (*x, at(spread.high))], colour.stroke_width(1))
            });
            chart.draw_series(bars).map_err(|e| e.to_string())?;
            let dots = medians.map(|place| Circle::new(place, 4, colour.filled()));
            chart.draw_series(dots).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Title, and below it the legend: beside the lines it would cover some of them.
    fn head(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String> {
        let title = (FONT, 18).into_font().color(&INK);
        area.draw(&Text::new(self.title.clone(), (16, 12), title)).map_err(|e| e.to_string())?;
        let style = (FONT, 13).into_font().color(&INK);
        let mut left = 18;
        for line in &self.lines {
            let colour = line.colour;
            let sample = PathElement::new(vec![(left, 48), (left + 24, 48)], colour.stroke_width(2));
            area.draw(&sample).map_err(|e| e.to_string())?;
            area.draw(&Circle::new((left + 12, 48), 4, colour.filled())).map_err(|e| e.to_string())?;
            let name = Text::new(line.name, (left + 30, 41), style.clone());
            area.draw(&name).map_err(|e| e.to_string())?;
            // An estimate of the text width: the font is not known here.
            left += 52 + i32::try_from(line.name.chars().count() * 7).unwrap_or(0);
        }
        Ok(())
    }
}

/// An axis scale: linear, or logarithmic to base ten.
#[derive(Clone)]
struct Scale {
    range: Range<f64>,
    log: bool,
}

impl Scale {
    /// With a margin at both ends. A linear vertical axis begins at zero.
    fn around(values: Vec<f64>, log: bool, height: bool) -> Scale {
        let values = values.into_iter().filter(|value| !log || *value > 0.0);
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high) = if low <= high { (low, high) } else { (1.0, 10.0) };
        let range = match (log, height) {
            (true, true) => 10f64.powf(low.log10().floor())..10f64.powf((high * 1.1).log10().ceil()),
            (true, false) => low / 1.4..high * 1.4,
            (false, true) => low.min(0.0)..high.max(low + 1e-6) * 1.12,
            (false, false) => low - (high - low) * 0.04..high + (high - low) * 0.04,
        };
        Scale { range, log }
    }

    fn share(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        if self.log {
            (value.max(start) / start).ln() / (end / start).ln()
        } else {
            (value - start) / (end - start)
        }
    }

    fn marks(&self) -> Vec<f64> {
        let Range { start, end } = self.range;
        if self.log {
            let decades = (end / start).log10();
            // Over few decades, powers of ten alone would be too far apart.
            let steps: &[f64] = if decades < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let first = start.log10().floor();
            #[expect(clippy::cast_possible_truncation, reason = "some tens at most")]
            let powers = (first as i32)..=(end.log10().ceil() as i32);
            return powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect();
        }
        let raw = (end - start) / 6.0;
        let unit = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * unit).find(|step| *step >= raw);
        let step = step.unwrap_or(raw);
        let first = (start / step).ceil();
        (0..20).map(|n| (first + f64::from(n)) * step).collect()
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        #[expect(clippy::cast_possible_truncation, reason = "a place on the picture")]
        let offset = (self.share(*value) * f64::from(limit.1 - limit.0)).round() as i32;
        limit.0 + offset
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let Range { start, end } = self.range;
        let inside = |mark: &f64| *mark >= start * 0.999_999 && *mark <= end * 1.000_001;
        self.marks().into_iter().filter(inside).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        let scaled = [(1e6, " M"), (1e3, " k")].into_iter().find(|(unit, _)| *value >= unit * 0.999_999);
        let (value, unit) = scaled.map_or((*value, ""), |(unit, name)| (value / unit, name));
        let text = format!("{value:.3}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    }
}
