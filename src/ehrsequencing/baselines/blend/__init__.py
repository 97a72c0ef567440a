"""The blend: network, boosted visits and landmark Cox as one model, with weights fitted out of fold."""
