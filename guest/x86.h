/* SPDX-License-Identifier: Apache-2.0 */
/* Single instructions. */
#pragma once

#include <stdint.h>

static inline uint64_t tsc_read(void)
{
	uint32_t low, high;

	__asm__ volatile("rdtsc" : "=a"(low), "=d"(high)::"memory");
	return (uint64_t)high << 32 | low;
}

static inline void out8(uint16_t port, uint8_t value)
{
	__asm__ volatile("outb %0, %1" ::"a"(value), "Nd"(port) : "memory");
}

static inline void out16(uint16_t port, uint16_t value)
{
	__asm__ volatile("outw %0, %1" ::"a"(value), "Nd"(port) : "memory");
}

static inline void out32(uint16_t port, uint32_t value)
{
	__asm__ volatile("outl %0, %1" ::"a"(value), "Nd"(port) : "memory");
}

static inline uint8_t in8(uint16_t port)
{
	uint8_t value;

	__asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port) : "memory");
	return value;
}

static inline uint32_t in32(uint16_t port)
{
	uint32_t value;

	__asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port) : "memory");
	return value;
}
