"""The words of which people, firms, resources and places are named. Data only."""

_FIRST = (
    "Amara Bruno Celia Dario Elena Farid Greta Hugo Ines Jonas Kaia Leon Mira Nadia Oskar Petra Quentin Rosa Samir Tessa Umar Vera "
    "Wanda Xenia Yusuf Zoe"
)
_LAST = (
    "Abel Bakker Castillo Dahl Eriksen Falk Garner Hoang Ivers Jansen Keller Lindqvist Moreau Novak Okafor Pereira Quist Romero "
    "Sato Tanaka Ulrich Varga Weiss Yilmaz Zeller"
)
_ADJECTIVES = (
    "Amber Birch Cobalt Dawn Ember Forest Granite Harbor Ivory Juniper Lunar Maple Northern Olive Prairie Quartz River Silver Timber "
    "Upland Velvet Winter"
)

FIRST_NAMES = tuple(_FIRST.split())
LAST_NAMES = tuple(_LAST.split())
FIRM_FORMS = ("Traders", "Works", "Partners", "Supply", "Brothers", "Industries")
ADJECTIVES = tuple(_ADJECTIVES.split())
