//! Service areas of bookings: CAMARA's circle and polygon, and the accesses that reach them.

use crate::runtime::api::Problem;
use crate::runtime::config::ManagedAccess;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Length of a degree of latitude, metres, on a sphere of 6,371 km radius.
const METRES_PER_DEGREE: f64 = 111_194.93;

/// A position, WGS 84, degrees.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Point {
    #[schema(minimum = -90, maximum = 90)]
    latitude: f64,
    #[schema(minimum = -180, maximum = 180)]
    longitude: f64,
}

/// A service area.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "areaType", rename_all = "UPPERCASE", deny_unknown_fields)]
pub enum Area {
    /// A circle around a position.
    Circle {
        /// Centre.
        center: Point,
        /// Radius, metres.
        #[schema(minimum = 1, maximum = 1_000_000)]
        radius: f64,
    },
    /// The inside of a polygon.
    Polygon {
        /// Corners.
        #[schema(min_items = 3, max_items = 15)]
        boundary: Vec<Point>,
    },
}

/// An access with a known position.
#[derive(Debug, Clone, PartialEq)]
pub struct LocatedAccess {
    name: String,
    at: Point,
    range_m: f64,
}

impl LocatedAccess {
    /// The accesses whose position is configured.
    pub fn of(accesses: &[ManagedAccess]) -> Vec<Self> {
        let placed = |a: &ManagedAccess| {
            let at = Point { latitude: a.latitude?, longitude: a.longitude? };
            Some(Self { name: a.name.clone(), at, range_m: a.range_m })
        };
        accesses.iter().filter_map(placed).collect()
    }
}

impl Area {
    /// The names of the accesses that reach into the area.
    ///
    /// # Errors
    /// The area is invalid, or no access reaches it.
    pub fn accesses(&self, placed: &[LocatedAccess]) -> Result<Vec<String>, Problem> {
        let wrong = |what: String| Problem::invalid(what).field("serviceArea");
        let points = match self {
            Self::Circle { center, radius } => {
                if !(1.0..=1_000_000.0).contains(radius) {
                    return Err(wrong(format!("radius is {radius}: must be 1 to 1000000 metres")));
                }
                std::slice::from_ref(center)
            }
            Self::Polygon { boundary } => {
                if !(3..=15).contains(&boundary.len()) {
                    return Err(wrong(format!("boundary has {} points: give 3 to 15", boundary.len())));
                }
                boundary
            }
        };
        let off =
            |p: &&Point| !(-90.0..=90.0).contains(&p.latitude) || !(-180.0..=180.0).contains(&p.longitude);
        if let Some(p) = points.iter().find(off) {
            let what =
                format!("{}, {}: latitude is -90 to 90, longitude -180 to 180", p.latitude, p.longitude);
            return Err(wrong(what));
        }
        let reaching: Vec<String> =
            placed.iter().filter(|a| self.distance_m(a.at) <= a.range_m).map(|a| a.name.clone()).collect();
        if reaching.is_empty() {
            let remedy = "give a larger area, or have the operator configure the positions of accesses ([[access]] latitude, longitude)";
            let mut problem = wrong("no access reaches this area".to_owned());
            problem.remedy = remedy.to_owned();
            return Err(problem);
        }
        Ok(reaching)
    }

    /// Distance of a position from the area, metres; zero inside. Computed on the tangent plane, which is
    /// accurate to one per cent for areas of a few hundred kilometres.
    fn distance_m(&self, from: Point) -> f64 {
        let flat = |p: &Point| {
            let east = (p.longitude - from.longitude + 540.0).rem_euclid(360.0) - 180.0;
            let scale = from.latitude.to_radians().cos();
            (east * scale * METRES_PER_DEGREE, (p.latitude - from.latitude) * METRES_PER_DEGREE)
        };
        match self {
            Self::Circle { center, radius } => {
                let (x, y) = flat(center);
                (x.hypot(y) - radius).max(0.0)
            }
            Self::Polygon { boundary } => {
                let corners: Vec<(f64, f64)> = boundary.iter().map(flat).collect();
                let ends = corners.iter().zip(corners.iter().cycle().skip(1));
                // A position is inside if a ray to the east crosses the boundary an odd number of times.
                let mut within = false;
                let mut nearest = f64::INFINITY;
                for (&(ax, ay), &(bx, by)) in ends {
                    if (ay > 0.0) != (by > 0.0) && ax + (0.0 - ay) / (by - ay) * (bx - ax) > 0.0 {
                        within = !within;
                    }
                    let (dx, dy) = (bx - ax, by - ay);
                    let length = dx * dx + dy * dy;
                    let part =
                        if length > 0.0 { ((-ax * dx - ay * dy) / length).clamp(0.0, 1.0) } else { 0.0 };
                    nearest = nearest.min((ax + part * dx).hypot(ay + part * dy));
                }
                if within { 0.0 } else { nearest }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(latitude: f64, longitude: f64) -> Point {
        Point { latitude, longitude }
    }

    fn placed(name: &str, latitude: f64, longitude: f64, range_m: f64) -> LocatedAccess {
        LocatedAccess { name: name.into(), at: at(latitude, longitude), range_m }
    }

    #[test]
    fn areas_name_the_accesses_that_reach_them() {
        let cells =
            [placed("shanghai", 31.225_29, 121.489_05, 500.0), placed("pudong", 31.151, 121.805, 2_000.0)];
        let area = |text: &str| serde_json::from_str::<Area>(text).unwrap().accesses(&cells);
        let circle = r#"{"areaType": "CIRCLE", "center": {"latitude": 31.22529, "longitude": 121.48905}, "radius": 100}"#;
        assert_eq!(area(circle).unwrap(), ["shanghai"]);
        let wide = circle.replace("100}", "40000}");
        assert_eq!(area(&wide).unwrap(), ["shanghai", "pudong"]);
        let square = r#"{"areaType": "POLYGON", "boundary": [{"latitude": 31.0, "longitude": 121.6},
            {"latitude": 31.3, "longitude": 121.6}, {"latitude": 31.3, "longitude": 122.0}, {"latitude": 31.0, "longitude": 122.0}]}"#;
        assert_eq!(area(square).unwrap(), ["pudong"]);
        assert_eq!(area(&square.replace("121.6", "121.81")).unwrap(), ["pudong"], "by its range");
        for wrong in [
            circle.replace("100}", "0}"),
            circle.replace("31.22529", "91"),
            circle.replace("31.22529", "-31"),
            r#"{"areaType": "POLYGON", "boundary": [{"latitude": 31.0, "longitude": 121.6}]}"#.into(),
        ] {
            assert_eq!(area(&wrong).unwrap_err().field.as_deref(), Some("serviceArea"), "{wrong}");
        }
    }

    proptest! {
        /// A polygon inscribed in a circle is never farther away than the circle, anywhere on earth, and
        /// contains only points of the circle.
        #[test]
        fn polygons_and_circles_agree(lat in -80.0..80.0_f64, lon in -180.0..180.0_f64, turn in 0.0..std::f64::consts::TAU, far in 0.0..3.0_f64) {
            let radius = 1_000.0;
            let scale = lat.to_radians().cos();
            let around = |angle: f64, r: f64| {
                let (x, y) = (r * angle.cos() / METRES_PER_DEGREE / scale, r * angle.sin() / METRES_PER_DEGREE);
                at(lat + y, (lon + x + 540.0).rem_euclid(360.0) - 180.0)
            };
            let boundary = (0..15).map(|i| around(f64::from(i) / 15.0 * std::f64::consts::TAU, radius)).collect();
            let (circle, polygon) = (Area::Circle { center: at(lat, lon), radius }, Area::Polygon { boundary });
            let from = around(turn, far * radius);
            let (c, p) = (circle.distance_m(from), polygon.distance_m(from));
            // The inscribed polygon deviates from the circle by at most 2.2 % of its radius.
            prop_assert!((p - c).abs() < 40.0, "{c} {p}");
        }
    }
}
