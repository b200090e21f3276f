//! Colours of pictures: those of the page's light theme (`html/page/style/theme.css`).

/// Colour as red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Colour(u8, u8, u8);

/// User code.
pub(crate) const USER: Colour = Colour(0xa9, 0xcf, 0xec);
/// The kernel.
pub(crate) const KERNEL: Colour = Colour(0xf7, 0xd4, 0x8b);
/// Programs, instances and threads.
pub(crate) const PROCESS: Colour = Colour(0xcf, 0xd8, 0xe2);
/// Reasons of missing frames.
pub(crate) const REASON: Colour = Colour(0xe3, 0xe5, 0xe8);
/// Growth, decline, and neither.
const MORE: Colour = Colour(0xc9, 0x37, 0x2c);
const LESS: Colour = Colour(0x21, 0x66, 0xac);
const SAME: Colour = Colour(0xec, 0xee, 0xf1);
/// Change of a share that has the full colour.
pub(crate) const FULL_CHANGE: f64 = 0.1;

impl Colour {
    /// Returns the colour of a change of a share: the root makes small ones visible.
    pub(crate) fn of_change(change: f64) -> Self {
        let strength = (change.abs() / FULL_CHANGE).sqrt().min(1.0);
        SAME.mixed(if change > 0.0 { MORE } else { LESS }, strength)
    }

    /// Returns the colour with a shade by a name, so that neighbours can be distinguished.
    pub(crate) fn shaded(self, name: &str) -> Self {
        let hash = name.bytes().fold(0_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        // The high bits of Knuth's multiplicative hash.
        let shade = f64::from(hash.wrapping_mul(2_654_435_761) >> 29) / 7.0;
        self.mixed(Self(0, 0, 0), shade * 0.1)
    }

    fn mixed(self, other: Self, part: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two bytes")]
        let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
        Self(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }

    /// True if white text is easier to read on it than black (WCAG 2.1, relative luminance, roughly).
    pub(crate) fn is_dark(self) -> bool {
        let linear = |part: u8| (f64::from(part) / 255.0).powf(2.2);
        0.2126 * linear(self.0) + 0.7152 * linear(self.1) + 0.0722 * linear(self.2) < 0.179
    }
}

impl std::fmt::Display for Colour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_ten_points_has_the_full_colour() {
        assert_eq!(Colour::of_change(0.1).to_string(), "#c9372c");
        assert_eq!(Colour::of_change(-0.5).to_string(), "#2166ac");
        assert_eq!(Colour::of_change(0.0).to_string(), "#eceef1");
        assert!(Colour::of_change(-0.4).is_dark() && !Colour::of_change(0.001).is_dark());
    }

    #[test]
    fn shades_stay_near_their_colour_and_differ() {
        let shades: std::collections::BTreeSet<String> =
            ["main", "work", "read", "write", "hash"].map(|name| USER.shaded(name).to_string()).into();
        assert!(shades.len() > 2, "{shades:?}");
        assert_eq!(USER.shaded("main"), USER.shaded("main"));
        assert!(!KERNEL.shaded("vfs_read").is_dark());
    }

    /// The page has the same colours.
    #[test]
    fn the_page_has_these_colours() {
        let theme = include_str!("html/page/style/theme.css");
        for (name, colour) in [
            ("frame-user", USER),
            ("frame-kernel", KERNEL),
            ("frame-process", PROCESS),
            ("frame-reason", REASON),
            ("more", MORE),
            ("less", LESS),
            ("same", SAME),
        ] {
            assert!(theme.contains(&format!("--{name}: light-dark({colour},")), "{name} {colour}");
        }
    }
}
